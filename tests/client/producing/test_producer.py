"""The producer's face: ways to send, what a record carries, callbacks, closing, forks."""

from __future__ import annotations

import asyncio
import doctest
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gapless.client import DeliveryFailed, LeftInSpool, Producer, Receipt
from gapless.client.formats import LEDGER_TOPIC, Seal
from gapless.client.producing import partitions, sealer
from gapless.client.producing import producer as module
from gapless.client.producing.direct import DirectSender
from gapless.client.producing.partitions import STEP_RECORDS
from gapless.client.producing.spooling import SpoolingSender
from gapless.client.spool.inspect import status
from gapless.errors import GaplessError, Unreachable, UsageError
from tests.client.conftest import Kafka, new_topic, read_all, wait_for


def test_its_examples_run(embedded: Kafka, tmp_path: Path) -> None:
    if "orders" not in embedded.admin.list_topics(timeout=10).topics:
        embedded.cluster.create_topic("orders")
    known = {
        **vars(module),
        "bootstrap": embedded.bootstrap,
        "folder": tmp_path / "spool",
        "asyncio": asyncio,
    }
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner()
    for example in finder.find(module, globs=known):
        runner.run(example)
    assert (runner.failures, runner.tries > 5) == (0, True)


def test_sync_async_and_with_a_callback(kafka: Kafka) -> None:
    topic = new_topic(kafka, 2)
    told: list[tuple[GaplessError | None, Receipt]] = []

    with Producer(kafka.bootstrap, "faces", buffer_ms=1) as producer:

        async def awaited() -> Receipt:
            return await producer.send(topic, b"awaited", partition=0)

        sync = producer.send(topic, b"sync", partition=0, wait=True)
        assert asyncio.run(awaited()).sequence == 1
        called = producer.send(topic, b"called", partition=1, on_delivery=lambda *both: told.append(both))
        assert producer.flush(30) == 0
        wait_for(lambda: told, "the callback was called")
    assert (sync.done, sync.error, told) == (True, None, [(None, called)])
    assert [(each.value, each.identity) for each in read_all(kafka, topic)] == [
        (b"sync", ("faces", producer.incarnation, 0)),
        (b"awaited", ("faces", producer.incarnation, 1)),
        (b"called", ("faces", producer.incarnation, 0)),
    ]


def test_a_record_carries_what_it_was_given_and_who_it_is(kafka: Kafka) -> None:
    topic = new_topic(kafka)
    with Producer(kafka.bootstrap, "carriers") as producer:
        receipt = producer.send(
            topic, "text", key="key", headers={"trace": "abc", "none": None}, timestamp_ms=1_700_000_000_000
        )
        producer.send(topic, None, key=b"tombstone", headers=[("a", b"1"), ("a", b"2")])
    first, second = read_all(kafka, topic)
    assert (first.key, first.value, first.timestamp_ms) == (b"key", b"text", 1_700_000_000_000)
    assert list(first.headers)[2:] == [("trace", b"abc"), ("none", None)]
    assert first.identity == receipt.identity
    assert (second.key, second.value) == (b"tombstone", None)
    assert list(second.headers)[2:] == [("a", b"1"), ("a", b"2")]


def test_sequences_are_dense_in_each_partition_whichever_thread_sends(kafka: Kafka) -> None:
    topic = new_topic(kafka, 3)
    with Producer(kafka.bootstrap, "threads") as producer:

        def send() -> None:
            for number in range(300):
                producer.send(topic, b"%d" % number)

        threads = [threading.Thread(target=send) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    found = read_all(kafka, topic)
    assert len(found) == 1200
    for partition in range(3):
        sequences = [
            each.identity.sequence for each in found if each.partition == partition and each.identity
        ]
        assert sequences == list(range(len(sequences)))


def seals_of(kafka: Kafka, producer: Producer) -> list[Seal]:
    """Also what an open transaction of somebody else hides from readers of what is committed."""
    if LEDGER_TOPIC not in kafka.admin.list_topics(timeout=10).topics:
        return []
    found = read_all(kafka, LEDGER_TOPIC, committed=False)
    seals = [Seal.from_bytes(each.value) for each in found if each.value]
    return [each for each in seals if each.incarnation == producer.incarnation]


def test_seals_promise_what_was_acknowledged(kafka: Kafka) -> None:
    topic = new_topic(kafka, 2)
    with Producer(kafka.bootstrap, "sealed-by-interval", seal_every_s=0.1) as producer:
        producer.send(topic, b"0", partition=1)
        wait_for(lambda: seals_of(kafka, producer), "a seal is written")
        for _ in range(5):
            producer.send(topic, b"more", partition=1, wait=True)
    seals = seals_of(kafka, producer)
    promised = [interval for seal in seals for interval in seal.intervals]
    assert (promised[0].first, promised[-1].last) == (0, 5)
    assert {sequence for each in promised for sequence in range(each.first, each.last + 1)} == set(range(6))
    assert {each[:2] for each in promised} == {(topic, 1)}
    assert seals[-1].counts == {topic: 6}


@pytest.mark.parametrize("mode", [None, "always"])
@pytest.mark.parametrize("comes_back", [True, False])
def test_the_last_seal_is_waited_for_as_long_as_the_close_may_take(
    kafka: Kafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str | None,
    comes_back: bool,
) -> None:
    """And if it cannot be written even then, somebody is told."""
    topic = new_topic(kafka)
    monkeypatch.setattr(sealer, "SEAL_S", 0.2)
    options: dict[str, Any] = {} if mode is None else {"spool": tmp_path, "spool_mode": mode}
    producer = Producer(kafka.bootstrap, "sealed-late", seal_every_s=0.1, **options)
    producer.send(topic, b"0", wait=True)
    wait_for(lambda: seals_of(kafka, producer), "a seal is written")
    assert isinstance(producer._sender, (DirectSender, SpoolingSender))
    producer._sender._upkeep.stop()
    producer.send(topic, b"1", wait=True)
    kafka.isolate()
    if comes_back:
        back = threading.Timer(1.0, kafka.heal)
        back.start()
        producer.close(30)
        back.join()
        assert seals_of(kafka, producer)[-1].counts == {topic: 2}
        assert "the last seal" not in caplog.text
    else:
        producer.close(0.5)
        assert "the last seal was not written" in caplog.text


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
@pytest.mark.parametrize("word", ["at-least-once", "exactly-once"])
def test_b8_a_callback_that_raises_does_no_harm(
    embedded: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture, word: str, raised: type[BaseException]
) -> None:
    topic = new_topic(embedded)
    spool = tmp_path if word == "exactly-once" else None
    calls: list[Receipt] = []

    def raise_it(error: GaplessError | None, receipt: Receipt) -> None:
        calls.append(receipt)
        raise raised("mine")

    with Producer(embedded.bootstrap, "raising", word, spool=spool) as producer:
        for _ in range(3):
            producer.send(topic, b"x", on_delivery=raise_it)
        producer.flush(30)
        wait_for(lambda: len(calls) == 3, "all callbacks were called")
        producer.send(topic, b"x", wait=True)
    assert caplog.text.count("on_delivery raised") == 1


@pytest.mark.parametrize("way", ["direct", "always", "exactly-once"])
def test_a_callback_for_librdkafka_that_raises_does_no_harm(
    embedded: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    topic = new_topic(embedded)
    calls: list[object] = []

    def raise_it(given: object) -> None:
        calls.append(given)
        sys.exit("mine")

    options: dict[str, Any] = {"direct": {}, "always": {"spool_mode": "always"}}.get(way, {})
    options |= {} if way == "direct" else {"spool": tmp_path}
    word = "exactly-once" if way == "exactly-once" else "at-least-once"
    properties = {"stats_cb": raise_it, "statistics.interval.ms": 50}
    with Producer(embedded.bootstrap, "raising", word, properties=properties, **options) as producer:
        for told in range(3):
            producer.send(topic, b"x", wait=True)
            wait_for(lambda told=told: len(calls) > told, "statistics were told")  # type: ignore[misc]
        producer.send(topic, b"x").wait(30)
    assert caplog.text.count("stats_cb raised") == 1


@pytest.mark.parametrize("mode", [None, "always", "fallback", "exactly-once"])
def test_waiting_flushing_and_closing_in_a_callback_are_refused(
    embedded: Kafka, tmp_path: Path, mode: str | None
) -> None:
    topic = new_topic(embedded)
    word = "exactly-once" if mode == "exactly-once" else "at-least-once"
    options: dict[str, Any] = {} if mode is None else {"spool": tmp_path}
    options |= {"spool_mode": mode} if mode in ("always", "fallback") else {}
    refused: list[str] = []
    with Producer(embedded.bootstrap, "waits-for-itself", word, **options) as producer:

        def call(_error: GaplessError | None, receipt: Receipt) -> None:
            receipt.wait(0.0)  # that one is done
            next_one = producer.send(topic, b"y", partition=0)
            for method in (
                producer.flush,
                producer.close,
                next_one.wait,
                partial(next_one.wait, 10.0),
                partial(producer.send, topic, b"not taken", wait=True),
            ):
                try:
                    method()
                except UsageError as error:
                    refused.append(str(error))

        producer.send(topic, b"x", partition=0, on_delivery=call)
        wait_for(lambda: len(refused) == 5, "all were refused")
        assert producer.send(topic, b"goes on", partition=0, wait=True).sequence == 2
    assert all("in on_delivery would wait for itself" in each for each in refused)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"value": 7}, "a value is bytes or text, not int"),
        ({"value": b"", "key": 7}, "a key is bytes or text"),
        ({"value": b"", "headers": {"gs": b"x"}}, "carries a record's identity"),
        ({"value": b"", "headers": {5: b"x"}}, "a header's name is text, not int"),
        ({"value": b"", "headers": {"\ud800": b"x"}}, "UTF-8 cannot carry"),  # once a segmentation fault
        ({"value": b"", "headers": [("a",)]}, "pairs of name and value"),
        ({"value": "\ud800"}, "a value is text that UTF-8 cannot carry"),
        ({"value": b"", "timestamp_ms": 1.5}, "timestamp_ms=1.5 cannot be"),
        ({"value": b"", "timestamp_ms": -5}, "timestamp_ms=-5 cannot be"),
        ({"value": b"", "partition": 99}, "has no partition 99"),
        ({"value": b"", "partition": "0"}, "a partition is a number, not '0'"),
        ({"value": b"x" * 2_000_000}, "cannot take the record"),
        ({"topic": "no such topic!", "value": b""}, "no such topic!"),
        ({"topic": 7, "value": b""}, "7 cannot name a topic"),
        ({"topic": None, "value": b""}, "None cannot name a topic"),
        ({"topic": "zero\0byte", "value": b""}, "cannot name a topic"),
        ({"topic": "\ud800", "value": b""}, "cannot name a topic"),
        ({"value": b"", "headers": {"gs\0": b"x"}}, "zero byte in its name"),  # else it is an identity
        ({"value": b"", "on_delivery": 7}, "7 cannot be called"),
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(
    embedded: Kafka, given: dict[str, object], complaint: str
) -> None:
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "refused") as producer:
        with pytest.raises(UsageError, match=complaint):
            producer.send(**{"topic": topic, **given})  # type: ignore[arg-type]
        assert producer.send(topic, b"fine", wait=True).sequence == 0  # nothing was used up


FALLS_BACK_SOON: dict[str, Any] = {"spool_mode": "fallback", "delivery_timeout_ms": 1_000, "backoff_ms": 50}
FELL_BACK = b"fell back"


@contextmanager
def falling_back(kafka: Kafka, producer: Producer, topic: str, folder: Path) -> Iterator[None]:
    """An outage. One record has fallen back to the spool, so all later records go there too."""
    with kafka.outage():
        producer.send(topic, FELL_BACK, partition=0)
        wait_for(lambda: status(folder).unsent == 1, "a record has fallen back")
        yield


@pytest.mark.parametrize("mode", ["always", "fallback", "exactly-once"])
def test_what_librdkafka_would_refuse_never_gets_into_a_spool(
    embedded: Kafka, tmp_path: Path, mode: str
) -> None:
    """There it would hold up all that is behind it, for ever."""
    topic = new_topic(embedded)
    word = "exactly-once" if mode == "exactly-once" else "at-least-once"
    options: dict[str, Any] = {"spool": tmp_path, "spool_mode": "always"}
    if mode == "fallback":
        options = {"spool": tmp_path, **FALLS_BACK_SOON}
    with Producer(embedded.bootstrap, "large", word, **options) as producer, ExitStack() as outage:
        producer.send(topic, b"first", wait=True)
        if mode == "fallback":
            outage.enter_context(falling_back(embedded, producer, topic, tmp_path))
        for value, headers in ((b"x" * 999_990, None), (b"", {"large": b"x" * 1_000_000})):
            with pytest.raises(UsageError, match=r"too large for message\.max\.bytes"):
                producer.send(topic, value, headers=headers)
        producer.send(topic, b"x" * 999_800)
        producer.send(topic, b"", headers={str(number): b"x" * 99_900 for number in range(10)})
        outage.close()
        assert producer.flush(30) == 0


def test_after_closing_nothing_is_taken(embedded: Kafka) -> None:
    topic = new_topic(embedded)
    producer = Producer(embedded.bootstrap, "closed")
    producer.send(topic, b"x")
    assert producer.close() == 0
    assert producer.close() == 0
    with pytest.raises(UsageError, match="the producer is closed"):
        producer.send(topic, b"x")


def test_an_exception_in_the_with_block_sends_what_was_taken(embedded: Kafka) -> None:
    topic = new_topic(embedded)

    def send_and_fail() -> None:
        with Producer(embedded.bootstrap, "excepted") as producer:
            producer.send(topic, b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        send_and_fail()
    assert len(read_all(embedded, topic)) == 1


def test_a_cluster_that_was_never_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.client.producing.partitions.ASK_S", 0.2)
    with (
        Producer("127.0.0.1:1", "nowhere") as producer,
        pytest.raises(Unreachable, match=r"127.0.0.1:1 does not answer"),
    ):
        producer.send("orders", b"x")


def test_librdkafka_is_asked_about_its_properties() -> None:
    with pytest.raises(UsageError, match=r"librdkafka refuses the settings.*no.such"):
        Producer("127.0.0.1:1", "unsettled", properties={"no.such": 1})


def test_sending_in_a_callback_never_waits_for_room_that_only_the_callbacks_thread_makes(
    embedded: Kafka, tmp_path: Path
) -> None:
    topic = new_topic(embedded)
    outcomes: list[str] = []
    for options in ({}, {"spool_max_bytes": 20_000, "spool_when_full": "block"}):
        folder = tmp_path / str(len(options))
        with Producer(embedded.bootstrap, "chained", "exactly-once", spool=folder, **options) as producer:  # type: ignore[arg-type]

            def send_more(_error: GaplessError | None, _receipt: Receipt) -> None:
                try:
                    outcomes.append(str(producer.send(topic, b"next").sequence))
                except UsageError as refused:
                    outcomes.append(str(refused))

            producer.send(topic, b"x", partition=0, on_delivery=send_more).wait(30)
    assert outcomes[0] == "1"
    assert "would wait for itself" in outcomes[1]


@pytest.mark.parametrize("mode", [None, "always", "fallback", "exactly-once"])
def test_a_forked_process_is_told_to_make_its_own(embedded: Kafka, tmp_path: Path, mode: str | None) -> None:
    topic = new_topic(embedded)
    word = "exactly-once" if mode == "exactly-once" else "at-least-once"
    options: dict[str, Any] = {} if mode is None else {"spool": tmp_path}
    options |= {"spool_mode": mode} if mode in ("always", "fallback") else {}
    with Producer(embedded.bootstrap, "forked", word, **options) as producer:
        producer.send(topic, b"parent", wait=True)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                producer.send(topic, b"child")
            except UsageError as refused:
                os.write(writing, str(refused).encode())
            try:
                producer.flush()
            except UsageError:
                os.write(writing, b" flush refused")
            os.write(writing, b" %d left" % producer.close())  # as leaving a `with` block does
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        told = os.read(reading, 1000)
        assert b"after the fork" in told
        assert told.endswith(b" flush refused 0 left")
        producer.send(topic, b"parent", wait=True)
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("mode", ["always", "fallback"])
def test_what_close_leaves_in_the_spool_goes_with_the_next_producer(
    kafka: Kafka, tmp_path: Path, mode: str
) -> None:
    topic = new_topic(kafka)
    kept = {"spool": tmp_path / "spool", "spool_mode": mode, "seal_every_s": 0}
    first = Producer(kafka.bootstrap, "left", **kept)  # type: ignore[arg-type]
    first.send(topic, b"0", wait=True)
    with kafka.outage():
        receipts = [first.send(topic, b"%d" % number) for number in range(1, 6)]
        assert first.close(0.1) == 5
        for each in receipts:
            with pytest.raises(LeftInSpool):
                each.wait(1)
    with Producer(kafka.bootstrap, "left", **kept) as second:  # type: ignore[arg-type]
        second.send(topic, b"6")
        assert second.flush(60) == 0
    found = read_all(kafka, topic)
    assert {each.value for each in found} == {b"%d" % number for number in range(7)}
    assert {each.identity for each in found if each.value in (b"1", b"5")} == {
        receipts[0].identity,
        receipts[-1].identity,
    }


@pytest.mark.parametrize("spool_mode", [None, "fallback", "always"])
def test_records_without_a_key_reach_all_partitions(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spool_mode: Any
) -> None:
    """However few they are, and also when all go to the spool."""
    monkeypatch.setattr(partitions, "RUN_S", -1.0)  # Every check finds that the run is over.
    topic = new_topic(embedded, 3)
    options: dict[str, Any] = {} if spool_mode is None else {"spool": tmp_path, "spool_mode": spool_mode}
    if spool_mode == "fallback":
        options |= FALLS_BACK_SOON
    with Producer(embedded.bootstrap, "spread", **options) as producer, ExitStack() as outage:
        producer.send(topic, b"first", partition=0, wait=True)
        if spool_mode == "fallback":
            outage.enter_context(falling_back(embedded, producer, topic, tmp_path))
        receipts = [producer.send(topic, b"%d" % number) for number in range(3 * STEP_RECORDS)]
        assert {each.partition for each in receipts} == set(range(3))
        outage.close()
        assert producer.flush(60) == 0
    found = [each.value for each in read_all(embedded, topic) if each.value not in (b"first", FELL_BACK)]
    assert sorted(map(int, filter(None, found))) == list(range(3 * STEP_RECORDS))


@pytest.mark.parametrize(
    "settings",
    [
        {"semantics": "at-most-once"},
        {"semantics": "at-least-once"},
        {"spool_mode": "always"},
        {"spool_mode": "fallback"},
        {"semantics": "exactly-once"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_a_closed_producer_holds_no_threads_and_no_connections(
    embedded: Kafka, tmp_path: Path, settings: dict[str, Any]
) -> None:
    if "spool_mode" in settings or settings.get("semantics") == "exactly-once":
        settings = {**settings, "spool": tmp_path / "spool"}
    topic = new_topic(embedded)
    gc.collect()  # what other tests left
    before = _librdkafka_threads()
    gc.disable()
    try:
        producer = Producer(embedded.bootstrap, "leaves-nothing", **settings)
        producer.send(topic, b"value").wait(30)
        assert _librdkafka_threads() - before
        producer.close()
        wait_for(lambda: not _librdkafka_threads() - before, "its threads have ended")
    finally:
        gc.enable()
    assert producer.flush(0.1) == 0
    for known in (topic, "never-asked-for"):
        with pytest.raises(UsageError, match="is closed"):
            producer.send(known, b"late")


def _tell(
    told: list[tuple[GaplessError | None, Receipt]], error: GaplessError | None, receipt: Receipt
) -> None:
    told.append((error, receipt))


def _librdkafka_threads() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if (task / "comm").read_text().startswith("rdk:"):
                found.add(task.name)
    return found


@pytest.mark.slow_variants("apache")
@pytest.mark.parametrize("spool_mode", [None, "fallback"])
def test_a_close_in_an_outage_tells_the_fate_of_every_record(
    kafka: Kafka, tmp_path: Path, spool_mode: str | None
) -> None:
    """librdkafka gives records up in threads of its own, and tells a moment later."""
    kept: dict[str, Any] = {"spool": tmp_path / "spool", "spool_mode": spool_mode} if spool_mode else {}
    count = 8_000
    for seal_every_s in (0, 10):
        topic = new_topic(kafka)
        producer = Producer(kafka.bootstrap, "told", seal_every_s=seal_every_s, **kept)
        producer.send(topic, b"before").wait(30)
        told: list[tuple[GaplessError | None, Receipt]] = []
        tell = partial(_tell, told)
        with kafka.outage():
            receipts = [producer.send(topic, b"value", on_delivery=tell) for _ in range(count)]
            left = producer.close(0.3)
        fates = Counter(type(each.error) for each in receipts if each.done)
        assert fates == {(LeftInSpool if spool_mode else DeliveryFailed): count}
        assert (len(told), left) == (count, count)
        if spool_mode:
            with Producer(kafka.bootstrap, "told", **kept) as successor:
                assert successor.flush(60) == 0
            # What was under way may have arrived, and comes again as the same record.
            assert len({each.identity for each in read_all(kafka, topic)}) == count + 1
