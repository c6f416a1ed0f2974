"""Python workers are forked with what they need: imported once, and from compiled modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from gapless.pipeline.daemon import without_archives

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(pyspark.__file__).parent
SITE = str(HOME.parent)


def test_pyspark_comes_from_its_installation_and_not_from_the_archive_in_it() -> None:
    own = [str(HOME / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]
    assert without_archives(["", *own, "/mine.zip", SITE]) == ["", "/mine.zip", SITE]


@pytest.mark.parametrize(
    "paths",
    [
        ["/opt/spark/python/lib/pyspark.zip", SITE],  # another Spark, perhaps of another version
        [str(HOME / "python" / "lib" / "pyspark.zip")],  # nothing else is installed
    ],
)
def test_archives_stay_where_there_is_nothing_better(paths: list[str]) -> None:
    assert without_archives(paths) == paths


@pytest.mark.spark
def test_a_worker_has_all_that_it_needs_before_its_first_record(spark: SparkSession) -> None:
    def told(batches: Iterator[Any]) -> Iterator[Any]:
        import sys

        ready = "gapless.pipeline.sinks.kafka.writer" in sys.modules
        import pyarrow as pa
        import pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"ready": ready, "pyspark": pyspark.__file__}])

    rows = spark.range(4, numPartitions=2).mapInArrow(told, "ready boolean, pyspark string").collect()
    assert {(row.ready, row.pyspark) for row in rows} == {(True, pyspark.__file__)}
