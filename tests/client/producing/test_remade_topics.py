"""A topic that is deleted and made anew with fewer partitions: records for the missing ones wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewPartitions, NewTopic

from gapless.client import Producer
from tests.client.conftest import PATIENCE_S, Kafka, new_topic, read_all, wait_for


@pytest.mark.parametrize(
    "options",
    [{"semantics": "exactly-once"}, {"spool_mode": "always", "backoff_ms": 50}],
    ids=["exactly-once", "at-least-once"],
)
def test_records_for_partitions_that_are_gone_wait_until_they_are_added(
    embedded: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    topic = new_topic(embedded, partitions=2)
    with Producer(embedded.bootstrap, f"{topic}-remade", spool=tmp_path, **options) as producer:
        producer.send(topic, b"before", partition=1).wait(30)
        embedded.admin.delete_topics([topic])[topic].result(PATIENCE_S)
        wait_for(lambda: _create(embedded, topic), "all brokers know that the old one is gone")
        receipts = [producer.send(topic, b"%d" % number, partition=number) for number in (0, 1)]
        advice = f"gapless topics alter {topic} --partitions 2"
        wait_for(lambda: advice in (producer.problem or ""), "what to do is told")
        assert f"{topic}-1 does not take a record" in (producer.problem or "")
        wait_for(lambda: f"{topic}-1 does not" in caplog.text, "the log has it")
        said = caplog.text.count(advice)
        embedded.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(PATIENCE_S)
        for receipt in receipts:
            receipt.wait(30)
        assert producer.problem is None
        assert caplog.text.count(advice) == said == 1, "once, however often it was tried"
    assert [record.value for record in read_all(embedded, topic)] == [b"0", b"1"]


def _create(kafka: Kafka, topic: str) -> bool:
    try:
        kafka.admin.create_topics([NewTopic(topic, 1, kafka.replicas)])[topic].result(PATIENCE_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True
