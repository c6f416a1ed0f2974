"""What tests of the transactional path share: a sender on a folder, a comparison of spool, topics and seals.

`check_sent` is the judge of all of them: what a read_committed reader finds is, record by record, what is in
the spool, and what the seals promise.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from gapless.audit.cluster import Cluster
from gapless.client.formats import LEDGER_TOPIC, Seal, owner_group, position_group
from gapless.client.producing.ledger import Committed, Ledger
from gapless.client.producing.session import Session
from gapless.client.producing.transactional import TransactionalSender
from gapless.client.records import Record
from gapless.client.spool import Spool, Spooled
from gapless.testing.quiet import quiet_logger
from tests.client.conftest import PATIENCE_S, Kafka, read_all, wait_for

Where = tuple[str, int]


def properties_of(kafka: Kafka | str, **further: Any) -> dict[str, Any]:
    bootstrap = kafka if isinstance(kafka, str) else kafka.bootstrap
    return {"bootstrap.servers": bootstrap, "logger": quiet_logger(), **further}


def new_sender(
    kafka: Kafka | str, folder: Path, source: str, properties: dict[str, Any] | None = None, **options: Any
) -> TransactionalSender:
    """A sender that is not started yet."""
    options = {"transaction_ms": 20, "start_wait_s": 20.0, **options}
    return TransactionalSender(
        Spool(folder, source), source, properties_of(kafka, **(properties or {})), **options
    )


@contextmanager
def sending(
    kafka: Kafka, folder: Path, source: str, properties: dict[str, Any] | None = None, **options: Any
) -> Iterator[TransactionalSender]:
    """A started sender, which is closed in the end, with all sent if it can be."""
    sender = new_sender(kafka, folder, source, properties, **options)
    try:
        sender.start()
        yield sender
    finally:
        sender.close(30.0)


def send(sender: TransactionalSender, topic: str, numbers: range, partitions: int = 2) -> Any:
    """Records whose values are numbers, round the partitions; the last one's receipt."""
    receipt = None
    for number in numbers:
        receipt = sender.send(topic, number % partitions, b"%d" % number, None, None, None, None)
    return receipt


def position_in(kafka: Kafka, source: str, incarnation: bytes) -> Committed | None:
    return _committed(kafka, position_group(source, incarnation))


def owner_in(kafka: Kafka, source: str) -> Committed | None:
    return _committed(kafka, owner_group(source))


def _committed(kafka: Kafka, group: str) -> Committed | None:
    ledger = Ledger(properties_of(kafka))
    try:
        return ledger.read(group)
    finally:
        ledger.rest()


def spooled(folder: Path, source: str) -> list[Spooled]:
    """All that a folder has, in order."""
    with Spool(folder, source) as spool:
        found: list[Spooled] = []
        while records := spool.read(len(found)):
            found += records
    return found


def values(records: list[Record]) -> dict[Where, list[int]]:
    found: dict[Where, list[int]] = defaultdict(list)
    for record in records:
        found[record.topic, record.partition].append(int(record.value or b""))
    return dict(found)


def check_sent(kafka: Kafka, folder: Path, source: str) -> list[Spooled]:
    """All that the folder has is in the topics, once, in order, and promised. The sender must be closed."""
    records = spooled(folder, source)
    expected: dict[Where, list[tuple[Any, ...]]] = defaultdict(list)
    for record in records:
        expected[record.topic, record.partition].append(
            (record.incarnation, record.sequence, record.timestamp_ms, record.key, record.value)
        )
    found: dict[Where, list[tuple[Any, ...]]] = defaultdict(list)
    for topic in sorted({record.topic for record in records}):
        settle(kafka, topic)
        for each in read_all(kafka, topic):
            identity = each.identity
            assert identity is not None
            assert identity.source == source
            found[each.topic, each.partition].append(
                (identity.incarnation, identity.sequence, each.timestamp_ms, each.key, each.value)
            )
    for where, sent in expected.items():
        assert [each[1] for each in found[where]] == [each[1] for each in sent], f"{where}: lost or doubled"
    assert found == expected
    check_sealed(kafka, source, records)
    return records


def settle(kafka: Kafka, topic: str) -> None:
    """Apache Kafka answers a commit before its markers are written: who reads at once would miss the last."""
    Cluster(kafka.bootstrap, properties_of(kafka)).settled_ends(topic)


def seals_of_source(kafka: Kafka, source: str) -> list[Seal]:
    every = [Seal.from_bytes(record.value or b"") for record in read_all(kafka, LEDGER_TOPIC)]
    return [seal for seal in every if seal.source == source]


def check_sealed(kafka: Kafka, source: str, records: list[Spooled]) -> None:
    """The union of the seals is what was sent; the last one counts all of it."""
    promised: set[tuple[bytes, str, int, int]] = set()
    if records:
        settle(kafka, LEDGER_TOPIC)
    seals = seals_of_source(kafka, source)
    for seal in seals:
        for topic, partition, first, last in seal.intervals:
            promised.update((seal.incarnation, topic, partition, each) for each in range(first, last + 1))
    assert promised == {(each.incarnation, each.topic, each.partition, each.sequence) for each in records}
    if records:
        counts: dict[str, int] = defaultdict(int)
        for each in records:
            counts[each.topic] += 1
        assert {topic: count for topic, count in seals[-1].counts.items() if count} == counts


def undecided(kafka: Kafka, topic: str, partition: int = 0) -> int:
    """How many offsets of a partition belong to transactions that are neither committed nor aborted."""
    where = TopicPartition(topic, partition)
    ends = []
    for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
        asked = kafka.admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=level)
        ends.append(asked[where].result(PATIENCE_S).offset)
    return int(ends[0] - ends[1])


class Gate:
    """Holds a session's commits back while it is shut; only those with records of the spool in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._open.set()
        self.arrived = threading.Event()
        self.commits = 0
        real_commit, real_produce = Session.commit, Session.produce
        gate = self
        with_records: set[int] = set()

        def produce(session: Session, records: Any) -> None:
            with_records.add(id(session))
            real_produce(session, records)

        def commit(session: Session) -> None:
            if id(session) in with_records:
                with_records.discard(id(session))
                gate.commits += 1
                if not gate._open.is_set():
                    session._producer.flush(PATIENCE_S)
                    gate.arrived.set()
                    gate._open.wait(PATIENCE_S)
            real_commit(session)

        monkeypatch.setattr(Session, "produce", produce)
        monkeypatch.setattr(Session, "commit", commit)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()


__all__ = ["Gate", "check_sent", "new_sender", "send", "sending", "wait_for"]
