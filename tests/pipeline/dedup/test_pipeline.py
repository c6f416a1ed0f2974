"""A whole pipeline that takes copies out, stopped where a batch is in its sink and Spark does not know it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.pipeline.definition import Definition
from gapless.pipeline.run import Pipeline
from gapless.pipeline.sections import Dedup, Source, ToParquet, TransformSettings
from gapless.pipeline.table import read_table
from tests.pipeline.dedup.batches import Sent, identity, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def forget_the_last_commit(checkpoint: Path) -> None:
    """As a crash between the last sink and Spark's note that the batch is done."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()


@pytest.mark.parametrize(
    ("dedup", "stage"),
    [
        (Dedup(by="identity"), False),
        (Dedup(by="hash", watermark="10 minutes"), False),
        (Dedup(by="hash", watermark="10 minutes"), True),
    ],
    ids=["identity", "hash", "hash, staged"],
)
def test_copies_are_out_and_repeated_batches_do_no_harm(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path, dedup: Dedup, stage: bool
) -> None:
    """C6, E6."""
    definition = Definition(
        name=f"dedup-{topic}",
        checkpoint=str(tmp_path / "checkpoint"),
        source=Source(bootstrap, [topic], value="text"),
        sinks=[ToParquet(str(tmp_path / "table"))],
        dedup=dedup,
        transform=TransformSettings(sql="SELECT value FROM records", stage=stage),
    )

    def copies(numbers: range) -> list[Sent]:
        return [Sent(number % 2, b"%d" % number, identity("shop", number)) for number in numbers]

    for numbers, again in ((range(10), range(5)), (range(10, 20), range(5, 15))):
        send(bootstrap, topic, [*copies(numbers), *copies(again)])
        Pipeline(definition, spark=spark).run(once=True)
        forget_the_last_commit(tmp_path / "checkpoint")
        Pipeline(definition, spark=spark).run(once=True)

    found = sorted(int(row.value) for row in read_table(spark, tmp_path / "table").collect())
    assert found == list(range(20))
