"""What docs/pipeline.md shows runs as it stands there."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.cli.pipeline.new import TEMPLATE
from gapless.pipeline.check import check, exit_code_of
from gapless.pipeline.definition import Definition
from gapless.pipeline.run import Pipeline
from gapless.testing.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipeline.md").read_text()
VALUES = [b'{"id": 1, "amount": 5}', b"nonsense", b'{"id": 2, "amount": 0}', b'{"id": 3, "amount": 7}']


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def own_bootstrap() -> Iterator[str]:
    """The page names its topics: a broker of its own has them."""
    with EmbeddedBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        names = ("orders", "orders-clean", "orders-unreadable", "orders-paid", "orders-copy")
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
            made.result()
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for value in VALUES:
            producer.produce("orders", value)
        assert producer.flush(30) == 0
        yield broker.bootstrap


def values(bootstrap: str, topic: str) -> Counter[bytes]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "look", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    found: Counter[bytes] = Counter()
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found[message.value() or b""] += 1
    finally:
        consumer.close()
    return found


def test_the_examples_of_the_page_do_what_it_says(
    spark: SparkSession, own_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [toml] = blocks("toml")
    (tmp_path / "orders.toml").write_text(toml.replace("127.0.0.1:9092", own_bootstrap))
    definition = Definition.load("orders.toml")
    assert exit_code_of(check(definition)) == 0
    Pipeline(definition, spark=spark).run(once=True)
    clean = values(own_bootstrap, "orders-clean")
    assert [json.loads(value)["id"] for value in sorted(clean)] == [1, 3]
    assert values(own_bootstrap, "orders-unreadable") == Counter([b"nonsense"])
    assert spark.read.format("delta").load(str(tmp_path / "tables/orders")).count() == 2

    function, in_python, own_query = blocks("python")

    def run(code: str) -> dict[str, object]:
        # The session was started elsewhere, and that is where its JVM looks for relative paths.
        code = code.replace("127.0.0.1:9092", own_bootstrap).replace(
            '"checkpoints/', f'"{tmp_path}/checkpoints/'
        )
        names: dict[str, object] = {}
        exec(compile(code, "docs/pipeline.md", "exec"), names)  # noqa: S102 - our own page
        return names

    run(in_python)
    assert values(own_bootstrap, "orders-paid") == Counter(value.upper() for value in VALUES)
    run(own_query)
    assert values(own_bootstrap, "orders-copy") == Counter(VALUES)
    cleaned = run(function)["clean"](spark.sql("SELECT 1 AS id, 2.0 AS amount, 'x' AS value"))  # type: ignore[operator]
    assert [tuple(row) for row in cleaned.collect()] == [("1", "x")]


def test_the_page_explains_every_setting() -> None:
    named = set(re.findall(r"^#?([a-z_]+) = ", TEMPLATE, re.MULTILINE))
    assert named > {"starting", "on_loss", "latest_by"}
    for setting in named:
        assert f"`{setting}" in PAGE, setting
