"""Which folders a producer accepts as its spool: not one that would lose or repeat what others have sent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka import KafkaError, KafkaException

from gapless.client import Producer
from gapless.client.formats import reached_group
from gapless.client.producing import spooling
from gapless.client.producing.guarding import Guard
from gapless.client.producing.ledger import Ledger
from gapless.client.spool import Spool, SpoolRestored
from gapless.errors import UsageError
from tests.client.conftest import Kafka, new_topic, read_all, wait_for

QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}


@pytest.mark.parametrize("word", ["at-least-once", None])
@pytest.mark.parametrize("mode", ["always", "fallback"])
def test_a_spool_whose_position_is_on_the_cluster_is_sent_exactly_once_only(
    embedded: Kafka, tmp_path: Path, word: str | None, mode: Literal["always", "fallback"]
) -> None:
    """Else the next exactly-once start found a position behind what was sent, and blamed the cluster."""
    topic = new_topic(embedded)
    with Producer(embedded.bootstrap, "claimed", "exactly-once", spool=tmp_path) as producer:
        producer.send(topic, b"0", wait=True)
    with pytest.raises(UsageError, match="drained exactly-once: its position is on the cluster"):
        Producer(embedded.bootstrap, "claimed", word, spool=tmp_path, spool_mode=mode)
    with Producer(embedded.bootstrap, "claimed", "exactly-once", spool=tmp_path) as producer:
        assert producer.send(topic, b"1", wait=True).sequence == 1


ALWAYS: dict[str, Any] = {"spool_mode": "always", "seal_every_s": 0, "properties": QUICK}
"""No seals: what is known then is known after a crash as well."""


def send(kafka: Kafka, topic: str, folder: Path, values: list[bytes], **options: Any) -> list[int]:
    """By a producer of its own; the sequences that they got."""
    with Producer(kafka.bootstrap, folder.parent.name, spool=folder, **{**ALWAYS, **options}) as producer:
        receipts = [producer.send(topic, value, partition=0) for value in values]
        assert producer.flush(30) == 0
        return [each.wait(30).sequence for each in receipts]


def restore(folder: Path, backup: Path) -> None:
    folder.rename(folder.parent / "newest")
    shutil.copytree(backup, folder)


def test_a_restored_backup_is_refused_and_the_newest_folder_goes_on(kafka: Kafka, tmp_path: Path) -> None:
    """Else its next records got sequences that others have, and were lost on readers that know them."""
    topic, folder, backup = new_topic(kafka), tmp_path / "spool", tmp_path / "backup"
    send(kafka, topic, folder, [b"a0", b"a1"])
    shutil.copytree(folder, backup)
    send(kafka, topic, folder, [b"b0", b"b1"])
    restore(folder, backup)
    for _ in range(2):  # to have been opened does not make it newer
        with pytest.raises(SpoolRestored, match=r"old copy.*4 records .* sent, the folder had 2"):
            Producer(kafka.bootstrap, tmp_path.name, spool=folder, **ALWAYS)
    assert send(kafka, topic, tmp_path / "newest", [b"c0", b"c1"]) == [4, 5]
    assert [each.value for each in read_all(kafka, topic)] == [b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]


def test_a_copy_made_while_records_are_sent_is_known_for_one_after_a_crash(
    embedded: Kafka, tmp_path: Path
) -> None:
    """What may be sent is told to the cluster before it is sent, not at intervals."""
    topic, folder, backup = new_topic(embedded), tmp_path / "spool", tmp_path / "backup"
    with Producer(embedded.bootstrap, tmp_path.name, spool=folder, **ALWAYS) as producer:
        producer.send(topic, b"a", wait=True)
        shutil.copytree(folder, backup)
        producer.send(topic, b"b", wait=True)
        with (
            Spool(backup, tmp_path.name) as copy,
            pytest.raises(SpoolRestored, match="2 records of it have been sent, the folder had 1"),
        ):
            Guard(copy, tmp_path.name, producer.settings.connection()).check()


def test_an_old_copy_that_took_records_in_an_outage_sends_none_of_them(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those behind as many as were sent by the newest: they are others."""
    monkeypatch.setattr(spooling, "START_WAIT_S", 0.1)
    topic, folder, backup = new_topic(embedded), tmp_path / "spool", tmp_path / "backup"
    send(embedded, topic, folder, [b"a"])
    shutil.copytree(folder, backup)
    send(embedded, topic, folder, [b"b"])
    restore(folder, backup)
    with embedded.outage():
        producer = Producer(embedded.bootstrap, tmp_path.name, spool=folder, **ALWAYS)
        receipts = [producer.send(topic, value, partition=0).stored() for value in (b"c", b"d")]
        assert not any(each.done for each in receipts)
    with pytest.raises(SpoolRestored):
        receipts[0].wait(60)
    with pytest.raises(SpoolRestored):
        producer.send(topic, b"e")
    assert isinstance(producer.failure, SpoolRestored)
    assert producer.close() == 2
    assert isinstance(receipts[1].error, SpoolRestored)
    with pytest.raises(SpoolRestored, match="its record 1 is not the one that was sent"):
        send(embedded, topic, folder, [])
    assert [each.value for each in read_all(embedded, topic)] == [b"a", b"b"]


def test_where_the_register_has_expired_seals_tell(embedded: Kafka, tmp_path: Path) -> None:
    topic, folder, backup = new_topic(embedded), tmp_path / "spool", tmp_path / "backup"
    send(embedded, topic, folder, [b"a"], seal_every_s=10)
    shutil.copytree(folder, backup)
    send(embedded, topic, folder, [b"b"], seal_every_s=10)
    forget(embedded, folder)
    restore(folder, backup)
    with pytest.raises(SpoolRestored, match=f"{topic}-0 has its record 1, the folder only 1"):
        send(embedded, topic, folder, [])
    send(embedded, topic, tmp_path / "newest", [])  # which makes it anew
    with pytest.raises(SpoolRestored, match="2 records of it have been sent, the folder had 1"):
        send(embedded, topic, folder, [])
    assert send(embedded, topic, tmp_path / "newest", [b"c"]) == [2]


def forget(kafka: Kafka, folder: Path) -> None:
    with Spool(folder, folder.parent.name) as spool:
        group = reached_group(folder.parent.name, spool.incarnation)
    kafka.admin.delete_consumer_groups([group])[group].result(30)


def test_exactly_once_does_not_go_on_from_an_old_copy_of_a_folder_that_was_used_without(
    embedded: Kafka, tmp_path: Path
) -> None:
    topic, folder, backup = new_topic(embedded), tmp_path / "spool", tmp_path / "backup"
    send(embedded, topic, folder, [b"a"])
    shutil.copytree(folder, backup)
    send(embedded, topic, folder, [b"b"])
    restore(folder, backup)
    with pytest.raises(SpoolRestored, match="2 records of it have been sent"):
        Producer(embedded.bootstrap, tmp_path.name, "exactly-once", spool=folder)


def test_one_that_falls_back_sends_nothing_of_an_old_copy_and_tells_what_it_sends_of_the_newest(
    embedded: Kafka, tmp_path: Path
) -> None:
    topic, folder, backup = new_topic(embedded), tmp_path / "spool", tmp_path / "backup"
    fall_back: dict[str, Any] = {"spool_mode": "fallback"}
    send(embedded, topic, folder, [b"a"])
    with Spool(folder, tmp_path.name) as spool:
        spool.append(topic, 0, b"b")
    shutil.copytree(folder, backup)
    with Spool(folder, tmp_path.name) as spool:
        spool.append(topic, 0, b"c")
    send(embedded, topic, folder, [], **fall_back)
    restore(folder, backup)
    with Producer(embedded.bootstrap, tmp_path.name, spool=folder, **{**ALWAYS, **fall_back}) as producer:
        wait_for(lambda: producer.problem is not None, "it is told")
        assert "old copy" in str(producer.problem)
        assert producer.close(0.1) == 1
    assert [each.value for each in read_all(embedded, topic)] == [b"a", b"b", b"c"]


def test_who_may_not_have_registers_sends_all_the_same_and_is_warned(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    monkeypatch.setattr(Ledger, "write", write)
    topic, folder = new_topic(embedded), tmp_path / "spool"
    assert send(embedded, topic, folder, [b"a"]) == [0]
    assert send(embedded, topic, folder, [b"b"]) == [1]
    assert caplog.text.count("an old copy of the spool") == 2
