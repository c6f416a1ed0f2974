"""A lost position is never taken for a beginning, an old copy of a spool never for the spool (C6)."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from gapless.client.formats import LEDGER_TOPIC, position_group
from gapless.client.producing.ledger import register
from gapless.client.producing.ownership import PositionLost
from gapless.client.producing.producer import Producer
from gapless.client.producing.recovery import Recovered, _messages, recover
from gapless.client.spool import Spool, SpoolRestored
from gapless.testing.quiet import quiet_logger
from tests.client.conftest import Kafka, new_topic, read_all
from tests.client.producing.sending import (
    check_sent,
    new_sender,
    owner_in,
    position_in,
    properties_of,
    send,
    sending,
    values,
)
from tests.client.producing.test_crashes import begun


@contextmanager
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A spool that does not come to note what was sent, as when its process dies each time."""
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "note_sent", lambda *_: None)
        yield


def spool_up(folder: Path, source: str, topic: str, numbers: range, partitions: int = 2) -> None:
    """More records in the folder, unsent."""
    with Spool(folder, source) as spool:
        for number in numbers:
            spool.append(topic, number % partitions, b"%d" % number, timestamp_ms=1_700_000_000_000)


def incarnation_of(folder: Path, source: str) -> bytes:
    with Spool(folder, source) as spool:
        return spool.incarnation


def recovered(kafka: Kafka, folder: Path, source: str) -> Recovered:
    with Spool(folder, source) as spool:
        return recover(spool, source, properties_of(kafka))


def check_refused(kafka: Kafka, folder: Path, source: str, topic: str) -> None:
    """Nothing is sent, the folder stays as it is and is free again."""
    before = len(read_all(kafka, topic, committed=False))
    sender = new_sender(kafka, folder, source)
    with pytest.raises(PositionLost, match="gapless spool recover"):
        sender.start()
    with pytest.raises(PositionLost):
        send(sender, topic, range(1), 1)
    with pytest.raises(PositionLost):
        Producer(kafka.bootstrap, source, "exactly-once", spool=folder, properties={"logger": quiet_logger()})
    with Spool(folder, source):
        pass
    assert len(read_all(kafka, topic, committed=False)) == before


@pytest.mark.slow_variants("apache")
@pytest.mark.parametrize("lost", ["offsets", "ledger"])
def test_a_position_that_is_gone_is_an_error_and_is_found_again_in_the_topics(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    topic = new_topic(kafka, 2)
    source = f"{topic}-lost-{lost}"
    with forgetful(monkeypatch), sending(kafka, tmp_path, source) as sender:
        send(sender, topic, range(300)).wait(30)
    spool_up(tmp_path, source, topic, range(300, 350))
    incarnation = incarnation_of(tmp_path, source)
    if lost == "offsets":
        group = position_group(source, incarnation)
        kafka.admin.delete_consumer_groups([group])[group].result(30)
    else:
        kafka.admin.delete_topics([LEDGER_TOPIC])[LEDGER_TOPIC].result(30)
    check_refused(kafka, tmp_path, source, topic)
    assert recovered(kafka, tmp_path, source) == Recovered(300, None, 300, 50)
    position = position_in(kafka, source, incarnation)
    assert position is not None
    assert position.offset == 300
    with sending(kafka, tmp_path, source) as sender:
        send(sender, topic, range(350, 360)).wait(30)
    assert len(check_sent(kafka, tmp_path, source)) == 360


def test_a_position_that_went_back_is_an_error_too(embedded: Kafka, tmp_path: Path) -> None:
    """What the spool remembers of it is never ahead of the truth: the cluster has lost something."""
    topic = new_topic(embedded)
    source = f"{topic}-went-back"
    with sending(embedded, tmp_path, source) as sender:
        send(sender, topic, range(50), 1).wait(30)
        group = position_group(source, sender.incarnation)
    meddler = Consumer(properties_of(embedded, **{"group.id": group}))
    meddler.commit(offsets=[register(20, "somebody")], asynchronous=False)
    meddler.close()
    check_refused(embedded, tmp_path, source, topic)
    assert recovered(embedded, tmp_path, source) == Recovered(50, 20, 50, 0)
    with sending(embedded, tmp_path, source) as sender:
        send(sender, topic, range(50, 60), 1).wait(30)
    check_sent(embedded, tmp_path, source)


@pytest.mark.slow_variants("apache")
def test_what_a_dead_process_did_not_commit_proves_nothing(kafka: Kafka, tmp_path: Path) -> None:
    """Aborted copies stay in the log: whoever recovers must not take them for records."""
    topic = new_topic(kafka, 3)
    source = f"{topic}-aborted"
    with begun(kafka, tmp_path, source, [topic], run=0, records=50) as process:
        assert process.wait(60) == 0
    with begun(kafka, tmp_path, source, [topic], run=1, die_at="between-position-and-commit") as victim:
        assert victim.wait(60) == -signal.SIGKILL
    folder = tmp_path / "spool"
    group = position_group(source, incarnation_of(folder, source))
    with Spool(folder, source) as spool:
        in_spool = spool.stored
        recover(spool, source, properties_of(kafka))  # decides what the dead process left open
    assert len(read_all(kafka, topic, committed=False)) > 50
    kafka.admin.delete_consumer_groups([group])[group].result(30)
    assert recovered(kafka, folder, source) == Recovered(50, None, 50, in_spool - 50)
    with sending(kafka, folder, source) as sender:
        assert sender.flush(30) == 0
    check_sent(kafka, folder, source)


def test_seals_prove_what_retention_has_taken(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(embedded)
    source = f"{topic}-expired"
    with forgetful(monkeypatch), sending(embedded, tmp_path, source) as sender:
        send(sender, topic, range(100), 1).wait(30)
        group = position_group(source, sender.incarnation)
    taken = TopicPartition(topic, 0, embedded.cluster.high_watermark(topic, 0) or 0)
    embedded.admin.delete_records([taken])[taken].result(30)
    embedded.admin.delete_consumer_groups([group])[group].result(30)
    assert recovered(embedded, tmp_path, source) == Recovered(100, None, 100, 0)
    with sending(embedded, tmp_path, source) as sender:
        send(sender, topic, range(100, 110), 1).wait(30)
    assert values(read_all(embedded, topic)) == {(topic, 0): list(range(100, 110))}


def test_records_are_found_behind_many_of_others(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapless.client.producing.recovery.FIRST_WINDOW", 10)
    topic = new_topic(embedded)
    source = f"{topic}-behind"
    with forgetful(monkeypatch), sending(embedded, tmp_path / "ours", source, seal_every_s=0) as sender:
        send(sender, topic, range(7), 1).wait(30)
        group = position_group(source, sender.incarnation)
    with sending(embedded, tmp_path / "others", f"{source}-other") as sender:
        send(sender, topic, range(100, 400), 1).wait(30)
    embedded.admin.delete_consumer_groups([group])[group].result(30)
    assert recovered(embedded, tmp_path / "ours", source) == Recovered(7, None, 7, 0)


def test_recovering_a_spool_that_was_never_used_begins_it(embedded: Kafka, tmp_path: Path) -> None:
    topic = new_topic(embedded)
    source = f"{topic}-unused"
    spool_up(tmp_path, source, topic, range(10), 1)
    assert recovered(embedded, tmp_path, source) == Recovered(0, None, 0, 10)
    with sending(embedded, tmp_path, source) as sender:
        assert sender.flush(30) == 0
    check_sent(embedded, tmp_path, source)


def test_an_old_copy_of_a_spool_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    """A restored backup would give the identities of records that exist to new ones."""
    topic = new_topic(kafka)
    source = f"{topic}-restored"
    with sending(kafka, tmp_path / "spool", source) as sender:
        send(sender, topic, range(20), 1).wait(30)
    shutil.copytree(tmp_path / "spool", tmp_path / "backup")
    with sending(kafka, tmp_path / "spool", source) as sender:
        send(sender, topic, range(20, 40), 1).wait(30)
    with pytest.raises(SpoolRestored, match="old copy"):
        new_sender(kafka, tmp_path / "backup", source).start()
    with pytest.raises(SpoolRestored, match="old copy"):
        recovered(kafka, tmp_path / "backup", source)
    assert len(read_all(kafka, topic)) == 40


def test_an_old_copy_that_has_grown_past_the_position_is_refused(embedded: Kafka, tmp_path: Path) -> None:
    """In an outage a restored backup may take more records than it lacks: they are others, and it shows."""
    topic = new_topic(embedded)
    source = f"{topic}-grown"
    with sending(embedded, tmp_path / "spool", source) as sender:
        send(sender, topic, range(20), 1).wait(30)
    shutil.copytree(tmp_path / "spool", tmp_path / "backup")
    with sending(embedded, tmp_path / "spool", source) as sender:
        send(sender, topic, range(20, 40), 1).wait(30)
    spool_up(tmp_path / "backup", source, topic, range(1000, 1050), 1)
    with pytest.raises(SpoolRestored, match="not the one that was sent"):
        new_sender(embedded, tmp_path / "backup", source).start()
    with sending(embedded, tmp_path / "spool", source) as sender:
        send(sender, topic, range(40, 50), 1).wait(30)
    check_sent(embedded, tmp_path / "spool", source)


def test_recovering_leaves_the_owner_to_the_next_producer(embedded: Kafka, tmp_path: Path) -> None:
    topic = new_topic(embedded)
    source = f"{topic}-owner"
    with sending(embedded, tmp_path, source) as sender:
        send(sender, topic, range(5), 1).wait(30)
    before = owner_in(embedded, source)
    recovered(embedded, tmp_path, source)
    assert owner_in(embedded, source) == before
    with sending(embedded, tmp_path, source) as sender:
        send(sender, topic, range(5, 10), 1).wait(30)
        assert owner_in(embedded, source) != before
    check_sent(embedded, tmp_path, source)


class NewLeader:
    """A reader of a partition whose leader learns only after its first answer how much is committed."""

    def __init__(self) -> None:
        self.answers = [[_message(0, KafkaError(KafkaError._PARTITION_EOF))], [_message(0), _message(1)]]

    def assign(self, _partitions: object) -> None: ...

    def unassign(self) -> None: ...

    def consume(self, _count: int, _timeout_s: float) -> list[object]:
        return self.answers.pop(0)

    def position(self, _partitions: object) -> list[TopicPartition]:
        return [TopicPartition("orders", 0, 0 if self.answers else 2)]


def _message(offset: int, error: KafkaError | None = None) -> object:
    return SimpleNamespace(offset=lambda: offset, error=lambda: error)


def test_an_end_that_comes_before_the_end_is_not_believed() -> None:
    reader: Any = NewLeader()
    read = _messages(reader, "orders", 0, 0, 2, give_up_at=time.monotonic() + 10)
    assert [message.offset() for message in read] == [0, 1]
