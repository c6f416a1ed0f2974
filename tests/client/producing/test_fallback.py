"""B9: what cannot be sent is kept on disk and sent later: across an outage, a crash, and both."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from gapless.client import DeliveryFailed, Producer
from gapless.client.producing.direct import DirectSender
from gapless.client.producing.spooling import SpoolingSender
from gapless.client.producing.transactional import TransactionalSender
from gapless.client.records import Record
from gapless.client.spool import Spool, SpoolFailed, SpoolFull
from gapless.errors import GaplessError
from tests.client.conftest import Kafka, new_topic, read_all, wait_for
from tests.client.producing.dying import send_and_die
from tests.client.spool.disks import NO_SPACE, FaultyDisk

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
SOON: dict[str, Any] = {
    "delivery_timeout_ms": 2_000,
    "backoff_ms": 50,
    "seal_every_s": 0,
    "properties": QUICK,
}


def values(found: list[Record]) -> list[bytes | None]:
    return [each.value for each in found if each.value != b"first"]


def each_once(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def sender_of(producer: Producer) -> DirectSender:
    assert isinstance(producer._sender, DirectSender)
    return producer._sender


def test_b9_an_outage_longer_than_all_retries_loses_nothing(kafka: Kafka, tmp_path: Path) -> None:
    """They fall back in order, keep their identity, and go out by themselves when the cluster is back."""
    topic = new_topic(kafka)
    told: list[GaplessError | None] = []
    with Producer(kafka.bootstrap, "b9", spool=tmp_path / "spool", **SOON) as producer:
        producer.send(topic, b"first", wait=True)
        with kafka.outage():
            receipts = [
                producer.send(topic, b"%d" % number, on_delivery=lambda error, _: told.append(error))
                for number in range(20)
            ]
            wait_for(lambda: sender_of(producer).spooled == 20, "all have fallen back")
            receipts += [producer.send(topic, b"%d" % number) for number in range(20, 30)]
            assert not any(each.done for each in receipts)
        assert [each.wait(60).sequence for each in receipts] == list(range(1, 31))
        wait_for(lambda: len(told) == 20, "all callbacks were called")
        assert set(told) == {None}
        assert producer.flush(30) == 0
        assert producer.send(topic, b"30").wait(30).sequence == 31  # directly again
    found = read_all(kafka, topic)
    # What was on its way when the network went silent may be there twice, under one identity.
    first_copies = list(dict.fromkeys(each.identity for each in found))
    assert len(first_copies) == 32
    assert list(dict.fromkeys(values(found))) == each_once(31)


@pytest.mark.parametrize(("mode", "moment"), [("fallback", "spooled"), ("always", "stored")])
def test_b9_an_outage_and_a_crash_together_lose_nothing(
    kafka: Kafka, tmp_path: Path, mode: str, moment: str
) -> None:
    topic = new_topic(kafka)
    options = {"spool": str(tmp_path / "spool"), "spool_mode": mode, **SOON}
    send_and_die(kafka, topic, moment, 20, kafka.isolate, **options)
    kafka.heal()
    with Producer(kafka.bootstrap, "dying", **options) as producer:
        assert producer.flush(60) == 0
    assert list(dict.fromkeys(values(read_all(kafka, topic)))) == each_once(20)


def test_b9_a_crash_alone_loses_nothing_that_was_stored(kafka: Kafka, tmp_path: Path) -> None:
    topic = new_topic(kafka)
    options = {"spool": str(tmp_path / "spool"), "spool_mode": "always", **SOON}
    send_and_die(kafka, topic, "stored", 20, **options)
    with Producer(kafka.bootstrap, "dying", **options) as producer:
        assert producer.flush(60) == 0
    assert set(values(read_all(kafka, topic))) == set(each_once(20))


def test_c6_after_a_crash_the_spool_repeats_the_same_identities(kafka: Kafka, tmp_path: Path) -> None:
    """Killed between acknowledgement and note: a new session sends again, and readers can tell."""
    topic = new_topic(kafka, 2)
    options = {"spool": str(tmp_path / "spool"), "spool_mode": "always", **SOON}
    send_and_die(kafka, topic, "noting", 10, **options)
    with Producer(kafka.bootstrap, "dying", **options) as producer:
        assert producer.flush(60) == 0
    found = read_all(kafka, topic)
    where = {(each.identity, each.partition) for each in found}
    assert len(where) == 11 < len(found)
    assert max(Counter(each.identity for each in found).values()) == 2


def test_a_full_spool_is_an_error_to_the_caller(kafka: Kafka, tmp_path: Path) -> None:
    """Never a silent drop: send() raises, and what had been taken says what became of it."""
    topic = new_topic(kafka)
    with Producer(
        kafka.bootstrap, "b9", spool=tmp_path / "spool", spool_max_bytes=20_000, buffer_messages=5, **SOON
    ) as producer:
        producer.send(topic, b"first", wait=True)
        taken = []
        with kafka.outage():
            deadline = time.monotonic() + 30

            def send_until_full() -> None:
                while time.monotonic() < deadline:
                    taken.append(producer.send(topic, b"x" * 1_000))

            with pytest.raises(SpoolFull):
                send_until_full()
            wait_for(lambda: not sender_of(producer).poller.unreported, "the others have failed, too")
        assert producer.flush(60) == 0
        wait_for(lambda: all(each.done for each in taken), "all is told")
    kept = {each.identity for each in taken if each.error is None}
    lost = [each for each in taken if each.error is not None]
    assert all(isinstance(each.error, DeliveryFailed) and "then: " in str(each.error) for each in lost)
    assert kept <= {each.identity for each in read_all(kafka, topic)}


def test_a_record_that_is_refused_for_ever_does_not_fall_back(kafka: Kafka, tmp_path: Path) -> None:
    small = new_topic(kafka, 1, **{"max.message.bytes": "1000"})
    with Producer(kafka.bootstrap, "b9", spool=tmp_path / "spool", **SOON) as producer:
        with pytest.raises(DeliveryFailed):
            producer.send(small, b"x" * 5_000).wait(30)
        producer.send(small, b"0").wait(30)
        assert producer.flush(30) == 0
    assert values(read_all(kafka, small)) == [b"0"]


def test_a_restart_during_an_outage_still_knows_the_topics(kafka: Kafka, tmp_path: Path) -> None:
    topic = new_topic(kafka, 3)
    options: dict[str, Any] = {"spool": tmp_path / "spool", "spool_mode": "always", **SOON}
    with Producer(kafka.bootstrap, "b9", **options) as producer:
        chosen = producer.send(topic, b"0", key=b"customer-7", wait=True).partition
    with kafka.outage():
        again = Producer(kafka.bootstrap, "b9", **options)
        assert again.send(topic, b"1", key=b"customer-7").stored().partition == chosen
    with again:
        assert again.flush(60) == 0
    assert {each.partition for each in read_all(kafka, topic)} == {chosen}


# ------------------------------------------------------------------------------------ fatal errors


class Doomed:
    """Stands before a producer of librdkafka: takes some records, then has failed for good."""

    def __init__(self, real: Any, takes: int) -> None:
        self._real = real
        self._left = takes

    def produce(self, *arguments: Any) -> None:
        if not self._left:
            raise KafkaException(KafkaError(KafkaError._FATAL, "doomed", True))
        self._left -= 1
        self._real.produce(*arguments)

    def __len__(self) -> int:
        return len(self._real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize("with_spool", [False, True])
def test_a_session_that_failed_for_good_is_replaced(
    embedded: Kafka, tmp_path: Path, with_spool: bool
) -> None:
    """What it had not confirmed goes again under its identity; nothing is lost."""
    topic = new_topic(embedded)
    options: dict[str, Any] = {"spool": tmp_path / "spool"} if with_spool else {}
    with Producer(embedded.bootstrap, "fatal", buffer_ms=500, seal_every_s=0, **options) as producer:
        producer.send(topic, b"first", wait=True)
        sender: Any = sender_of(producer)
        doomed = sender.poller.producer = Doomed(sender.poller.producer, 5)
        sender._produce = doomed.produce
        receipts = [producer.send(topic, b"%d" % number) for number in range(10)]
        assert producer.flush(30) == 0
        assert [each.wait(30).sequence for each in receipts] == list(range(1, 11))
        assert sender.poller.producer is not doomed
    assert set(values(read_all(embedded, topic))) == set(each_once(10))


def test_two_producers_on_one_spool_are_refused(embedded: Kafka, tmp_path: Path) -> None:
    with (
        Producer(embedded.bootstrap, "b9", spool=tmp_path),
        pytest.raises(GaplessError, match=r"(?i)in use|another"),
    ):
        Producer(embedded.bootstrap, "b9", spool=tmp_path)
    Spool(tmp_path, "b9").close()


def test_closing_does_not_wait_for_who_waits_for_room_in_the_spool(embedded: Kafka, tmp_path: Path) -> None:
    """A sender that is blocked by a full spool must not block close() as well."""
    topic = new_topic(embedded)
    options: dict[str, Any] = {"spool_max_bytes": 20_000, "spool_when_full": "block", "buffer_messages": 5}
    producer = Producer(embedded.bootstrap, "blocked", spool=tmp_path / "spool", **options, **SOON)
    producer.send(topic, b"first", wait=True)
    refused: list[GaplessError] = []

    def send_until_closed() -> None:
        try:
            while True:
                producer.send(topic, b"x" * 1_000)
        except GaplessError as error:
            refused.append(error)

    sending = threading.Thread(target=send_until_closed, daemon=True)
    closing = threading.Thread(target=producer.close, args=(0.5,), daemon=True)
    with embedded.outage():
        sending.start()
        direct = sender_of(producer)
        wait_for(lambda: direct.spooled and direct._lock.locked(), "it waits for room")
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
        sending.join(20)
    assert [type(each) for each in refused] == [SpoolFull]


@pytest.mark.parametrize("word", ["at-least-once", "exactly-once"])
def test_a_record_that_the_disk_refuses_during_an_outage_is_told_of_at_once(
    tmp_path: Path, word: str
) -> None:
    """And not when the cluster is back."""
    told: list[GaplessError | None] = []
    away: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    sender: SpoolingSender | TransactionalSender
    to_close: Producer | TransactionalSender
    if word == "exactly-once":
        to_close = sender = TransactionalSender(Spool(tmp_path, "full"), "full", away, start_wait_s=0.0)
        sender.start()
    else:
        to_close = Producer("127.0.0.1:1", "full", spool=tmp_path, spool_mode="always")
        assert isinstance(to_close._sender, SpoolingSender)
        sender = to_close._sender
    sender.send("orders", 0, b"stored", None, None, None, None).stored()
    disk = FaultyDisk()
    disk.write_error = NO_SPACE
    sender.spool._segments._disk = disk
    receipt = sender.send("orders", 0, b"refused", None, None, None, lambda error, _: told.append(error))
    with pytest.raises(SpoolFailed, match="No space left"):
        receipt.wait(9)
    if word == "at-least-once":
        wait_for(lambda: told, "the callback was called")
    disk.heal()
    to_close.close(0)
    assert [type(each) for each in told] == [SpoolFailed]


class _HangingDisk(FaultyDisk):
    """Refuses writes, but only when it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.write_error = NO_SPACE
        self.go_on = threading.Event()

    def write(self, fd: int, pieces: Sequence[bytes], offset: int) -> None:
        self.go_on.wait(30)
        super().write(fd, pieces, offset)


@pytest.mark.parametrize("word", ["at-least-once", "exactly-once"])
def test_a_flush_does_not_wait_for_what_the_disk_refuses(embedded: Kafka, tmp_path: Path, word: str) -> None:
    """The record's place in the spool stays free until the next one comes: nothing would end the flush."""
    topic = new_topic(embedded)
    producer = Producer(embedded.bootstrap, "full", word, spool=tmp_path, spool_mode="always")
    sender = producer._sender
    assert isinstance(sender, SpoolingSender | TransactionalSender)
    producer.send(topic, b"stored", wait=True)
    sender.spool._segments._disk = disk = _HangingDisk()
    receipt = producer.send(topic, b"refused")
    left: list[int] = []
    flushing = threading.Thread(target=lambda: left.append(producer.flush()), daemon=True)
    flushing.start()
    flushing.join(0.1)
    assert flushing.is_alive()
    disk.go_on.set()
    flushing.join(20)
    assert left == [0]
    assert isinstance(receipt.error, SpoolFailed)
    disk.heal()
    producer.close()
