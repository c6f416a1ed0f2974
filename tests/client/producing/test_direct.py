"""What acks, retries and idempotence can lose and repeat (B1-B3, B6-B8, B10, C1-C7), on real faults."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections import Counter
from queue import Queue
from typing import Any

import pytest

from gapless.client import BufferFull, DeliveryFailed, Producer, Receipt
from gapless.client.formats import Identity
from gapless.client.records import Record
from gapless.errors import GaplessError
from tests.client.conftest import Kafka, new_topic, read_all, wait_for
from tests.client.producing.dying import send_and_die

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}


def copies(found: list[Record]) -> Counter[Identity | None]:
    return Counter(each.identity for each in found)


def numbers(found: list[Record]) -> list[int]:
    return [int(each.value or b"") for each in found]


# --------------------------------------------------------------------------------------------- acks


def test_b1_acks_0_confirms_what_is_refused(kafka: Kafka) -> None:
    """Handed to the network is all that is confirmed; what the broker thinks of it, nobody hears."""
    topic = new_topic(kafka, 1, **{"max.message.bytes": "1000"})
    with Producer(kafka.bootstrap, "b1", semantics="at-most-once", properties=QUICK) as producer:
        receipt = producer.send(topic, b"x" * 5_000, wait=True)
        assert receipt.error is None

        def one_arrives() -> bool:
            producer.send(topic, b"0", wait=True)
            return bool(read_all(kafka, topic))

        wait_for(one_arrives, "a smaller one arrives")
    assert receipt.identity not in copies(read_all(kafka, topic))


def test_b1_acks_0_confirms_what_dies_with_the_leader(embedded: Kafka) -> None:
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "b1", semantics="at-most-once", properties=QUICK) as producer:

        def one_arrives() -> bool:
            producer.send(topic, b"0", wait=True)
            return bool(read_all(embedded, topic))

        wait_for(one_arrives, "a first record arrives")
        embedded.isolate()
        receipts = [producer.send(topic, b"%d" % number) for number in range(1, 11)]
        assert [each.wait(10).error for each in receipts] == [None] * 10
    embedded.cluster.kill(*embedded.cluster.brokers)
    embedded.repair()
    assert set(numbers(read_all(embedded, topic))) == {0}


@pytest.mark.parametrize("acks", [1, "all"])
def test_b2_b3_the_leader_dies_before_others_have_the_record(embedded: Kafka, acks: int | str) -> None:
    """B2: acks=1 has confirmed it, and it is lost. B3: acks=all has not, and sends it to the next leader."""
    cluster = embedded.cluster
    topic = new_topic(embedded, 3)
    controller = cluster.controller()
    place = next(each for each in range(3) if cluster.leader(topic, each) != controller)
    leader = cluster.leader(topic, place)
    with Producer(
        embedded.bootstrap, "b2", None, acks=acks, buffer_ms=0, seal_every_s=0, properties=QUICK
    ) as producer:
        producer.send(topic, b"before", partition=place, wait=True)
        wait_for(lambda: read_all(embedded, topic), "the followers have it, too")
        for follower in cluster.brokers:
            if follower != leader:
                cluster.cut(leader, follower)  # a pause would not do: what is in its socket it has
        receipt = producer.send(topic, b"alone", partition=place)
        if acks == 1:
            receipt.wait(10)
        else:
            time.sleep(0.1)  # enough for the leader to have it; it must not be confirmed, however long
            assert not receipt.done
        cluster.kill(leader)
        cluster.wait_until(topic, place, leader_not=leader)
        producer.send(topic, b"after", partition=place).wait(30)
        receipt.wait(30)
    embedded.repair()
    values = [each.value for each in read_all(embedded, topic)]
    assert values == ([b"before", b"after"] if acks == 1 else [b"before", b"alone", b"after"])


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_b6_six_cases_and_what_a_crash_of_the_process_loses(kafka: Kafka, how: str, acks: int | str) -> None:
    """Sync: what was confirmed by a broker is there. Async: the buffer dies with the process (B7)."""
    topic = new_topic(kafka)
    confirmed = send_and_die(
        kafka,
        topic,
        "waited" if how == "sync" else "sent",
        10,
        semantics=None,
        acks=acks,
        buffer_ms=0 if how == "sync" else 5_000,
        seal_every_s=0,
    )
    found = [each for each in read_all(kafka, topic) if each.value != b"first"]
    if how == "async":
        assert (confirmed, found) == (0, [])
    elif acks == 0:
        assert confirmed == 10
        assert len(found) <= 10  # handed to the network: nobody knows more
    else:
        assert (confirmed, numbers(found)) == (10, list(range(10)))


# -------------------------------------------------------------------------------- answers that get lost


def test_c1_acks_0_never_repeats(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap, "c1", semantics="at-most-once", properties=QUICK) as producer:
        for number in range(300):
            producer.send(topic, b"%d" % number)
            if number in (100, 200):
                producer.flush(10)
                with kafka.outage():
                    producer.send(topic, b"1000")
    found = read_all(kafka, topic)
    assert found
    assert max(copies(found).values()) == 1


@pytest.mark.parametrize(("acks", "idempotence"), [(1, False), ("all", False), ("all", True)])
def test_b10_c2_c4_an_answer_is_lost_and_the_record_is_sent_again(
    kafka: Kafka, acks: int | str, idempotence: bool
) -> None:
    """The write had happened: without idempotence it happens twice, with the same identity."""
    topic = new_topic(kafka)
    lost_before = kafka.acks_lost
    with Producer(
        kafka.bootstrap,
        "c2",
        None,
        acks=acks,
        idempotence=idempotence,
        backoff_ms=20,
        seal_every_s=0,
        properties=QUICK,
    ) as producer:
        producer.send(topic, b"0", wait=True)
        kafka.lose_acks(1)
        receipt = producer.send(topic, b"1").wait(30)
        producer.send(topic, b"2").wait(30)
    assert kafka.acks_lost == lost_before + 1
    assert copies(read_all(kafka, topic))[receipt.identity] == (1 if idempotence else 2)


def test_c3_c5_c7_with_idempotence_order_holds_and_nothing_repeats_whatever_is_lost(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    with Producer(
        kafka.bootstrap,
        "c5",
        retries=10,
        backoff_ms=20,
        batch_messages=10,
        seal_every_s=0,
        properties=QUICK,
    ) as producer:
        producer.send(topic, b"0", wait=True)
        kafka.lose_acks(3)
        for number in range(1, 200):
            producer.send(topic, b"%d" % number)
        if kafka.name == "embedded":
            kafka.cluster.kill(kafka.cluster.leader(topic))
        assert producer.flush(60) == 0
    assert numbers(read_all(kafka, topic)) == list(range(200))


def test_c6_a_new_session_is_not_recognised(kafka: Kafka) -> None:
    """Two idempotent sessions, one message: it is there twice, and nothing tells that it is one."""
    topic = new_topic(kafka)
    for _ in range(2):
        with Producer(kafka.bootstrap, "c6", seal_every_s=0) as producer:
            producer.send(topic, b"7", wait=True)
    found = read_all(kafka, topic)
    assert numbers(found) == [7, 7]
    assert len(copies(found)) == 2


# ------------------------------------------------------------------------------------------- callbacks


def test_b8_a_failure_is_told_and_can_be_compensated(kafka: Kafka) -> None:
    small, large = new_topic(kafka, 1, **{"max.message.bytes": "1000"}), new_topic(kafka)
    told: Queue[tuple[GaplessError | None, Receipt]] = Queue()
    with Producer(kafka.bootstrap, "b8") as producer:
        refused = producer.send(small, b"x" * 5_000, on_delivery=lambda *both: told.put(both))
        error, receipt = told.get(timeout=30)
        assert receipt is refused
        producer.send(large, b"x" * 5_000, wait=True)
    assert isinstance(error, DeliveryFailed)
    assert f"{small}-0 #0 was not acknowledged" in str(error)
    assert "may have arrived" not in str(error)
    assert (read_all(kafka, small), len(read_all(kafka, large))) == ([], 1)


def test_b10_after_a_timeout_nobody_claims_that_the_record_is_not_there(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    with Producer(
        kafka.bootstrap, "b10", delivery_timeout_ms=2_000, backoff_ms=20, seal_every_s=0, properties=QUICK
    ) as producer:
        producer.send(topic, b"0", wait=True)
        with kafka.outage():
            receipt = producer.send(topic, b"1")
            with pytest.raises(DeliveryFailed, match="it may have arrived all the same"):
                receipt.wait(30)


# ------------------------------------------------------------------------------------------ the buffer


class Full:
    """A producer whose buffer of ten records is full, during an outage."""

    def __init__(self, kafka: Kafka, when_full: Any, **options: Any) -> None:
        self.topic = new_topic(kafka)
        self.producer = Producer(
            kafka.bootstrap,
            "b7",
            None,
            when_full=when_full,
            buffer_messages=10,
            seal_every_s=0,
            properties=QUICK,
            **options,
        )
        self.producer.send(self.topic, b"0", wait=True)
        self.producer.flush(10)  # librdkafka counts a record until its callback has returned
        kafka.isolate()
        for number in range(1, 11):
            self.producer.send(self.topic, b"%d" % number)


def test_b7_a_full_buffer_blocks_for_a_time_and_says_so(kafka: Kafka) -> None:
    full = Full(kafka, 0.2)
    began = time.monotonic()
    with full.producer as producer:
        with pytest.raises(BufferFull, match=r"full for 0.2 s: the record was not taken"):
            producer.send(full.topic, b"11")
        assert time.monotonic() - began >= 0.2
        kafka.heal()
        assert producer.send(full.topic, b"11", wait=True).sequence == 11  # none was used up
    assert numbers(read_all(kafka, full.topic)) == list(range(12))


def test_b7_a_full_buffer_drops_and_counts(kafka: Kafka) -> None:
    full = Full(kafka, "drop")
    told: Queue[GaplessError | None] = Queue()
    with full.producer as producer:
        dropped = [
            producer.send(full.topic, b"11", on_delivery=lambda error, _: told.put(error)) for _ in range(5)
        ]
        assert producer.dropped == 5
        assert all(isinstance(each.error, BufferFull) for each in dropped)
        assert isinstance(told.get(timeout=10), BufferFull)
        kafka.heal()
    assert numbers(read_all(kafka, full.topic)) == list(range(11))


def test_b7_blocking_for_ever_moves_the_problem_to_the_callers_memory(kafka: Kafka) -> None:
    """What arrives while send() blocks piles up in front of it, without bound. The cure is B9."""
    full = Full(kafka, "block")
    incoming: Queue[int] = Queue()
    ended = threading.Event()

    def send_on() -> None:
        while (number := incoming.get()) >= 0:
            full.producer.send(full.topic, b"%d" % number)
        ended.set()

    with full.producer:
        threading.Thread(target=send_on, daemon=True).start()
        for number in range(11, 1_011):
            incoming.put(number)
        wait_for(lambda: incoming.qsize() < 1_000, "the sender has begun")
        assert not ended.wait(0.2)
        assert incoming.qsize() >= 990
        incoming.put(-1)
        kafka.heal()
        assert ended.wait(30)
    assert numbers(read_all(kafka, full.topic)) == list(range(1_011))


def test_b7_b9_a_full_buffer_goes_to_the_spool(kafka: Kafka, tmp_path: Any) -> None:
    full = Full(kafka, "spool", spool=tmp_path / "spool", delivery_timeout_ms=60_000)
    with full.producer as producer:
        for number in range(11, 1_011):
            producer.send(full.topic, b"%d" % number)
        kafka.heal()
        assert producer.flush(60) == 0
    assert numbers(read_all(kafka, full.topic)) == list(range(1_011))


def test_b7_records_go_when_the_time_is_up_or_the_batch_is_full(embedded: Kafka) -> None:
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "b7", buffer_ms=5_000, batch_messages=5, seal_every_s=0) as producer:
        began = time.monotonic()
        batch = [producer.send(topic, b"x") for _ in range(5)]
        batch[-1].wait(30)
        assert time.monotonic() - began < 5.0
        began = time.monotonic()
        rest = [producer.send(topic, b"x") for _ in range(4)]
        rest[-1].wait(30)
        assert time.monotonic() - began >= 4.9


@pytest.mark.parametrize("at_once", [1, 100])
def test_an_interrupt_in_the_middle_of_a_send_leaves_the_producer_well(embedded: Kafka, at_once: int) -> None:
    """Ctrl-C comes anywhere on the main thread: nothing stays locked, no sequence is used twice."""
    topic = new_topic(embedded)
    receipts: list[Receipt] = []
    struck = 0

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal struck
        struck += 1
        raise KeyboardInterrupt

    def send_until_struck(producer: Producer) -> None:
        """Python drops what is raised in a callback of its own, so the exception alone might not end it."""
        before = struck
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        while struck == before:
            if at_once == 1:
                receipts.append(producer.send(topic, b"%d" % len(receipts), partition=0))
            else:
                receipts.extend(producer.send_many(topic, [b"%d" % len(receipts)] * at_once, partition=0))

    interrupted = 0
    timeout = signal.setitimer(signal.ITIMER_REAL, 0)  # pytest-timeout has the same clock
    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # it has callbacks of other tests' libraries, in which an interrupt is dropped, and told
    try:
        with Producer(embedded.bootstrap, "interrupted", seal_every_s=0) as producer:
            for _ in range(100):
                try:
                    send_until_struck(producer)
                except KeyboardInterrupt:
                    interrupted += 1
            assert producer.flush(60) == 0
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timeout)
    assert interrupted > 90
    found = read_all(embedded, topic)
    # A record may be sent whose receipt the interrupt took; its value is then used again, never its sequence.
    assert max(copies(found).values()) == 1
    assert {each.identity for each in receipts} <= set(copies(found))
