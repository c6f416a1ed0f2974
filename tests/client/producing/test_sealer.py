"""Seals are tried until the time is up, and the last ones are kept in the folder if that is not enough."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from gapless.client import Producer
from gapless.client.formats import Interval, Seal
from gapless.client.producing import sealer as module
from gapless.client.producing.ledger import LedgerMissing
from gapless.client.producing.polling import Poller
from gapless.client.producing.sealer import LAST_SEAL_S, SEAL_S, Sealer, last_seal_timeout_s, read_kept_seals
from gapless.client.producing.upkeep import Promised
from gapless.client.spool import Spool
from tests.client.conftest import Kafka, new_topic, wait_for
from tests.client.producing.sending import new_sender, seals_of_source, send
from tests.client.producing.test_producer import seals_of

SEALS = [
    Seal("orders-api", b"8 bytes.", 1, "interval", (Interval("orders", partition, 0, 9),), {"orders": 20})
    for partition in (0, 1)
]

Fault = KafkaError | BaseException | None
"""An error that is reported or raised; None: the seal is written."""


class FakeProducer:
    """Meets each seal with the next fault, and reports at once."""

    def __init__(self, faults: Iterator[Fault], written: list[bytes]) -> None:
        self._faults = faults
        self._written = written

    def produce(
        self, _topic: str, value: bytes, _key: bytes, _partition: int, on_delivery: Callable[..., None]
    ) -> None:
        fault = next(self._faults, None)
        if isinstance(fault, BaseException):
            raise fault
        if fault is None:
            self._written.append(value)
        on_delivery(fault, None)


class FakePoller:
    """Replaces its producer after a fatal error, as the real one does."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._faults = iter(faults)
        self.written: list[bytes] = []
        self.polling = threading.Lock()
        self._renew()

    def _renew(self) -> None:
        self.producer = FakeProducer(self._faults, self.written)

    @property
    def fatal(self) -> bool:
        return False

    @fatal.setter
    def fatal(self, _is_fatal: bool) -> None:
        self._renew()

    def serve(self, _timeout_s: float) -> None: ...


@pytest.fixture
def new_sealer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Sealer, FakePoller]]:
    """A sealer whose cluster is a list of faults: of the ledger's look-ups, and of its records."""

    def new(
        faults: Iterable[Fault] = (), ledger_faults: Iterable[Exception | None] = (), spool: Any = None
    ) -> tuple[Sealer, FakePoller]:
        of_ledger = iter(ledger_faults)

        class FakeLedger:
            def __init__(self, _properties: object) -> None: ...

            def ensure_topic(self, _timeout_s: float) -> None:
                fault = next(of_ledger, None)
                if fault is not None:
                    raise fault

            def rest(self) -> None: ...

        monkeypatch.setattr(module, "Ledger", FakeLedger)
        monkeypatch.setattr(module, "RETRY_S", 0.001)
        monkeypatch.setattr(module, "SERVE_S", 0.001)
        poller = FakePoller(faults)
        return Sealer(cast("Poller", poller), {}, spool), poller

    return new


NO_LEADER = KafkaError(KafkaError.NOT_ENOUGH_REPLICAS)
TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.parametrize(
    ("faults", "ledger_faults"),
    [
        ([], []),
        ([NO_LEADER, NO_LEADER, NO_LEADER], []),
        ([None, KafkaError(KafkaError._TRANSPORT)], []),
        ([BufferError("full"), None, BufferError("full")], []),
        ([KafkaException(KafkaError(KafkaError._FATAL))], []),
        ([KafkaError(KafkaError._PURGE_QUEUE)], []),
        ([], [TIMED_OUT, TIMED_OUT]),
        ([KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)], [None, TIMED_OUT]),
    ],
)
def test_what_may_pass_is_tried_again(
    new_sealer: Callable[..., tuple[Sealer, FakePoller]],
    caplog: pytest.LogCaptureFixture,
    faults: list[Fault],
    ledger_faults: list[Exception],
) -> None:
    sealer, poller = new_sealer(faults, ledger_faults)
    sealer.write_last(SEALS, 30)
    assert sorted(set(poller.written)) == sorted(seal.to_bytes() for seal in SEALS)
    assert "was not written" not in caplog.text
    sealer, poller = new_sealer(faults, ledger_faults)
    assert sealer.write(SEALS) == []


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE])
def test_what_is_refused_permanently_is_not_waited_for(
    new_sealer: Callable[..., tuple[Sealer, FakePoller]], caplog: pytest.LogCaptureFixture, code: int
) -> None:
    sealer, poller = new_sealer([KafkaError(code)])
    assert sealer.write(SEALS) == SEALS[:1]
    assert poller.written == [SEALS[1].to_bytes()]
    sealer, _ = new_sealer(ledger_faults=[KafkaException(KafkaError(code))])
    sealer.write_last(SEALS, 1e9)
    assert f"audits will miss promises: {KafkaError(code).str()}" in caplog.text
    sealer, _ = new_sealer(ledger_faults=[LedgerMissing("make it")])
    sealer.write_last(SEALS, 1e9)
    assert "audits will miss promises: make it" in caplog.text


def test_the_last_seals_are_kept_also_when_the_wait_is_interrupted(
    new_sealer: Callable[..., tuple[Sealer, FakePoller]], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with Spool(tmp_path, "orders-api") as spool:
        sealer, _ = new_sealer([KeyboardInterrupt()], spool=spool)
        with pytest.raises(KeyboardInterrupt):
            sealer.write_last(SEALS, 30)
    assert "the next producer with the spool" in caplog.text
    with Spool(tmp_path, "orders-api") as spool:
        kept = read_kept_seals(spool)
        assert [(seal.incarnation, seal.intervals, seal.counts) for seal in kept] == [
            (seal.incarnation, seal.intervals, seal.counts) for seal in SEALS
        ]
        sealer, _ = new_sealer(spool=spool)
        assert sealer.write(kept) == []
        assert read_kept_seals(spool) == []


def test_an_unreadable_kept_seal_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Spool(tmp_path, "orders-api") as spool:
        spool.keep_seals([b"not a seal", SEALS[0].to_bytes()])
        assert [seal.intervals for seal in read_kept_seals(spool)] == [SEALS[0].intervals]
    assert "keeps a seal that audits will miss" in caplog.text


def test_what_cannot_be_kept_is_reported(
    new_sealer: Callable[..., tuple[Sealer, FakePoller]], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    spool = Spool(tmp_path, "orders-api")
    spool.close()
    sealer, _ = new_sealer([NO_LEADER] * 2, spool=spool)
    sealer.write_last(SEALS, 0)
    assert "so audits will miss promises" in caplog.text
    assert "is closed" in caplog.text


def test_the_last_seal_gets_all_that_flushing_has_left() -> None:
    now = time.monotonic()
    assert 19 < last_seal_timeout_s(now + 20) <= 20
    assert last_seal_timeout_s(now - 1) == SEAL_S
    assert last_seal_timeout_s(None) == LAST_SEAL_S


def test_nothing_is_forgotten_when_writing_raises() -> None:
    promised = Promised("orders-api")
    promised.of(b"8 bytes.").note("orders", 0, 0)

    def write(_seals: object) -> list[Seal]:
        raise RuntimeError("unexpected")

    with pytest.raises(RuntimeError):
        promised.seal(write)
    [seal] = promised.take("close")
    assert seal.intervals == (Interval("orders", 0, 0, 0),)


@pytest.mark.parametrize("mode", [None, "fallback", "always"])
def test_a_last_seal_whose_attempts_are_used_up_gets_more(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str | None
) -> None:
    """On a busy machine, an election may outlast the attempts that a single record has."""
    topic = new_topic(kafka)
    options: dict[str, Any] = {} if mode is None else {"spool": tmp_path, "spool_mode": mode}
    producer = Producer(
        kafka.bootstrap, "sealed-at-last", retries=1, backoff_ms=1, seal_every_s=0.1, **options
    )
    producer.send(topic, b"0", wait=True)
    wait_for(lambda: seals_of(kafka, producer), "a seal is written, so the ledger exists")
    cast("Any", producer._sender)._upkeep.stop()
    producer.send(topic, b"1", wait=True)
    lost_before = kafka.acks_lost
    kafka.lose_acks(3)  # two attempts, and the first of two more
    with caplog.at_level(logging.INFO, "gapless.client"):
        producer.close(30)
    assert kafka.acks_lost == lost_before + 3
    assert "the last seal is not written yet" in caplog.text
    assert "the last seal was not written" not in caplog.text
    assert seals_of(kafka, producer)[-1].counts == {topic: 2}


@pytest.mark.parametrize("successor", ["fallback", "always", "exactly-once"])
def test_a_last_seal_that_cannot_be_written_is_written_by_the_next_producer(
    kafka: Kafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    successor: str,
) -> None:
    topic = new_topic(kafka)
    source = f"{topic}-kept"
    monkeypatch.setattr(module, "SEAL_S", 0.2)
    producer = Producer(kafka.bootstrap, source, spool=tmp_path, seal_every_s=60)
    producer.send(topic, b"0", wait=True)
    with kafka.outage():
        producer.close(0.1)
    assert "the next producer with the spool" in caplog.text
    assert "audits will miss promises" not in caplog.text
    options: dict[str, Any] = {"spool_mode": successor}
    if successor == "exactly-once":
        options = {"semantics": successor}
    with Producer(kafka.bootstrap, source, spool=tmp_path, seal_every_s=60, **options) as next_one:
        next_one.send(topic, b"1", wait=True)
    [seal] = seals_of(kafka, producer)
    assert (seal.reason, seal.intervals, seal.counts) == (
        "recovered",
        (Interval(topic, 0, 0, 0),),
        {topic: 1},
    )
    with Spool(tmp_path, source) as spool:
        assert spool.read_seals() == []


def test_with_transactions_seals_of_other_incarnations_are_kept_too(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records of another producer that it found in the folder; its own it finds again by itself."""
    topic = new_topic(kafka)
    source = f"{topic}-kept"
    monkeypatch.setattr(module, "SEAL_S", 0.2)
    first = Producer(kafka.bootstrap, source, spool=tmp_path, seal_every_s=60)
    first.send(topic, b"0", wait=True, partition=0)
    with kafka.outage():
        first.send(topic, b"1", partition=0)
        first.close(0.1)
    assert [seal.counts for seal in seals_of(kafka, first)] == []

    def transactional() -> Producer:
        return Producer(
            kafka.bootstrap, source, "exactly-once", spool=tmp_path, seal_every_s=60, transaction_ms=10
        )

    second = transactional()
    second.send(topic, b"2", wait=True, partition=0)
    caplog.clear()
    with kafka.outage():
        second.close(0.1)
    assert "the next producer with the spool" in caplog.text
    transactional().close()
    promised = [
        {(each.first, each.last) for seal in seals_of(kafka, producer) for each in seal.intervals}
        for producer in (first, second)
    ]
    assert promised == [{(0, 0), (1, 1)}, {(0, 0)}]
    with Spool(tmp_path, source) as spool:
        assert spool.read_seals() == []


def test_with_transactions_the_last_seal_gets_the_rest_of_the_timeout(
    embedded: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the session in which it was to be written has lost its patience."""
    topic = new_topic(embedded, 2)
    source = f"{topic}-sealed"
    sender = new_sender(embedded, tmp_path, source, seal_every_s=60, patience_s=0.2)
    sender.start()
    send(sender, topic, range(4)).wait(30)
    closing = threading.Thread(target=sender.close, args=(60,))
    with embedded.outage():
        closing.start()
        wait_for(lambda: sender.problem, "a session has failed")
    closing.join()
    assert [seal.reason for seal in seals_of_source(embedded, source)] == ["close"]
    assert "the last seal was not written" not in caplog.text
