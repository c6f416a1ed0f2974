"""SIGKILL, torn tails, damaged files: what was acknowledged is there once, in order, or its loss is told."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from gapless.wire.errors import ErrorCode
from tests.broker.conftest import BrokerMaker
from tests.broker.process import Broker, wait_until
from tests.broker.raw import PATIENCE_S, RawClient, batch_of
from tests.broker.test_connections import create_topic

RECORDS = 12_000
KILLS = 2


def segments_of(broker: Broker, topic: str) -> list[Path]:
    return sorted((broker.logs_dir / f"{topic}-0").glob("*.log"))


def new_consumer(broker: Broker) -> Consumer:
    """By assignment: librdkafka wants a group's name all the same."""
    return Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )


def read_back(broker: Broker, topic: str, count: int) -> list[int]:
    """The numbers in a topic from its beginning, by a client of another make than the tests' own."""
    consumer = new_consumer(broker)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), timeout=PATIENCE_S)
        assert messages, f"only {len(found)} of {count} records are there"
        for message in messages:
            assert message.error() is None
            found.append(int(message.value() or b""))
    consumer.close()
    return found


def fill(client: RawClient, topic: str, count: int = 40) -> None:
    for number in range(count):
        assert client.produce(topic, batch_of(b"record %d " % number + bytes(300))).error_code == 0


# ---------------------------------------------------------------------------------------------- SIGKILL


def test_a_producer_carries_on_over_crashes_without_loss_or_duplicates(start_broker: BrokerMaker) -> None:
    broker = start_broker()
    with broker.connect() as client:
        create_topic(client, "numbers", segment_bytes="100000")
    acknowledged: list[int] = []
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.append(int(message.value() or b""))
        else:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "on_delivery": delivered,
        }
    )
    sent = threading.Event()

    def crash_now_and_then() -> None:
        for kill in range(1, KILLS + 1):
            wait_until(lambda due=kill * RECORDS // (KILLS + 1): len(acknowledged) >= due, "enough is sent")  # type: ignore[misc]
            broker.kill()
            broker.start()
        sent.wait()

    crashing = threading.Thread(target=crash_now_and_then)
    crashing.start()
    for number in range(RECORDS):
        producer.produce("numbers", b"%d" % number, partition=0)
        producer.poll(0.001 if number % 100 == 0 else 0)
    assert producer.flush(PATIENCE_S * 2) == 0
    sent.set()
    crashing.join()
    assert failed == []
    assert acknowledged == list(range(RECORDS))
    assert read_back(broker, "numbers", RECORDS) == list(range(RECORDS))
    with broker.connect() as client:
        assert client.fetch("numbers", 0).high_watermark == RECORDS
    assert broker.said().count("ready: ") == KILLS + 1


def test_sequences_are_remembered_over_a_crash(start_broker: BrokerMaker) -> None:
    broker = start_broker()
    batch = {"producer_id": 77, "producer_epoch": 0}
    with broker.connect() as client:
        client.metadata("sequences")
        for sequence in range(3):
            client.produce("sequences", batch_of(b"x", base_sequence=sequence, **batch))
    broker.kill()
    broker.start()
    with broker.connect() as client:
        again = client.produce("sequences", batch_of(b"x", base_sequence=2, **batch))
        assert (again.error_code, again.base_offset) == (0, 2)
        skipped = client.produce("sequences", batch_of(b"x", base_sequence=4, **batch))
        assert skipped.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert client.produce("sequences", batch_of(b"x", base_sequence=3, **batch)).base_offset == 3


# -------------------------------------------------------------------------------------------- torn tails


def test_a_torn_tail_is_cut_and_its_size_told(start_broker: BrokerMaker) -> None:
    broker = start_broker()
    with broker.connect() as client:
        client.metadata("cut-short", "garbage", "zeros", "whole")
        for topic in ("cut-short", "garbage", "zeros", "whole"):
            fill(client, topic, 10)
    broker.kill()
    cut_short, garbage, zeros = (segments_of(broker, name)[0] for name in ("cut-short", "garbage", "zeros"))
    batch_bytes = cut_short.stat().st_size // 10
    os.truncate(cut_short, cut_short.stat().st_size - 100)
    with garbage.open("ab") as file:
        file.write(os.urandom(777))
    with zeros.open("ab") as file:
        file.write(bytes(888))
    broker.start()
    with broker.connect() as client:
        for topic, kept, lost in (
            ("cut-short", 9, batch_bytes - 100),
            ("garbage", 10, 777),
            ("zeros", 10, 888),
        ):
            assert f"cut {lost} bytes" in broker.wait_until_said(f"{topic}-0: cut")
            fetched = client.fetch(topic, 0)
            assert fetched.high_watermark == kept
            assert b"record %d " % (kept - 1) in fetched.records
            assert client.produce(topic, batch_of(b"and on")).base_offset == kept
        assert client.fetch("whole", 0).high_watermark == 10
    assert "whole-0: cut" not in broker.said()


# ------------------------------------------------------------------------------------------- damaged files


def damaged(start_broker: BrokerMaker, *topics: str, **config: str) -> Broker:
    """A stopped broker with topics of several segments, to be damaged, and another one."""
    broker = start_broker(config=config)
    with broker.connect() as client:
        for topic in topics or ("hurt",):
            create_topic(client, topic, segment_bytes="2000")
            fill(client, topic)
        client.metadata("other")
        fill(client, "other", 3)
    assert broker.stop_and_tell() == 0
    return broker


def assert_other_topics_are_served(client: RawClient) -> None:
    assert client.produce("other", batch_of(b"more")).error_code == 0
    assert b"more" in client.fetch("other", 0).records


def test_a_log_that_lost_what_was_on_disk_is_refused_and_others_serve(start_broker: BrokerMaker) -> None:
    broker = damaged(start_broker)
    last = segments_of(broker, "hurt")[-1]
    os.truncate(last, last.stat().st_size // 2)
    broker.start()
    line = broker.wait_until_said("partition hurt-0 is offline")
    assert str(last) in line
    assert "restore" in line
    with broker.connect() as client:
        assert client.produce("hurt", batch_of(b"x")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.fetch("hurt", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.metadata("hurt").topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert_other_topics_are_served(client)
    consumer = new_consumer(
        broker
    )  # librdkafka does not hang: whoever asks for the ends gets an error in time
    with pytest.raises(KafkaException):
        consumer.get_watermark_offsets(TopicPartition("hurt", 0), timeout=1)
    assert consumer.get_watermark_offsets(TopicPartition("other", 0), timeout=PATIENCE_S) == (0, 4)
    consumer.close()
    assert broker.stop_and_tell() == 0


def test_a_damaged_segment_in_the_middle_is_told_and_the_rest_stays_readable(
    start_broker: BrokerMaker,
) -> None:
    topics = ("cut-short", "garbage", "gone")
    broker = damaged(start_broker, *topics)
    next_sound = int(segments_of(broker, "gone")[4].stem)
    cut_short, garbage, gone = (segments_of(broker, topic)[3] for topic in topics)
    os.truncate(cut_short, 500)
    garbage.write_bytes(os.urandom(garbage.stat().st_size))
    gone.unlink()
    broker.start()
    with broker.connect() as client:
        for topic in topics:
            assert client.fetch(topic, 0).error_code == 0
            assert client.fetch(topic, next_sound - 1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert b"record %d " % next_sound in client.fetch(topic, next_sound).records
            assert client.produce(topic, batch_of(b"x")).error_code == 0
        assert_other_topics_are_served(client)
    for topic, mentioned in zip(topics, (cut_short, garbage, gone.parent), strict=True):
        assert str(mentioned) in broker.wait_until_said(f"partition {topic}-0 is damaged")


def test_retention_survives_a_damaged_segment(start_broker: BrokerMaker) -> None:
    broker = damaged(start_broker, **{"log.retention.check.interval.ms": "50"})
    segments = segments_of(broker, "hurt")
    segments[3].write_bytes(os.urandom(1000))
    for index in segments[3].parent.glob(f"{segments[3].stem}.*index"):
        index.unlink()
    broker.start()
    with broker.connect() as client:
        assert_other_topics_are_served(client)
        broker.wait_until_said(segments[3].name)
        assert_other_topics_are_served(client)
    assert "Traceback" not in broker.said()


def test_lost_indexes_are_made_anew(start_broker: BrokerMaker) -> None:
    broker = damaged(start_broker)
    for path in (broker.logs_dir / "hurt-0").iterdir():
        if path.suffix in (".index", ".timeindex", ".snapshot"):
            path.unlink()
    broker.start()
    with broker.connect() as client:
        for offset in range(40):
            assert b"record %d " % offset in client.fetch("hurt", offset).records
