"""Power cuts: what was flushed before it was acknowledged is there afterwards, the rest may be gone (D1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from gapless.storage.power_cut import NothingRecorded, Recorder, lose_unsynced
from gapless.testing import Cluster, EmbeddedBroker
from gapless.testing.quiet import quiet_logger

COUNT = 300
SEEDS = range(6)


def write(cluster: Cluster, topic: str, count: int = COUNT) -> int:
    """Send records in several requests; how many were acknowledged."""
    done = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "logger": quiet_logger(), "batch.num.messages": 20}
    )
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=lambda error, _: done.append(error))
    assert producer.flush(30) == 0
    assert not any(done)
    return len(done)


@pytest.fixture(scope="module")
def one() -> Iterator[Cluster]:
    with Cluster(brokers=1) as cluster:
        yield cluster


@pytest.mark.parametrize("seed", SEEDS)
def test_flushed_before_acknowledged_means_kept(one: Cluster, seed: int) -> None:
    """D1, B4: with flush.messages=1 a power cut takes nothing that was acknowledged."""
    topic = f"flushed-{seed}"
    one.create_topic(topic, config={"flush.messages": "1"})
    acknowledged = write(one, topic)
    one.power_cut(seed=seed)
    one.restart(1)
    # What was found again is flushed before anybody may read it, which takes a moment.
    assert one.wait_until(topic, leader=1, high_watermark=acknowledged).in_sync == (1,)
    assert one.high_watermark(topic) == acknowledged


@pytest.mark.parametrize("seed", SEEDS)
def test_the_page_cache_loses_its_tail_and_the_log_goes_on(one: Cluster, seed: int) -> None:
    """D1: without it the end of a log may be gone; what is left is sound, and new records follow it."""
    topic = f"cached-{seed}"
    one.create_topic(topic)
    acknowledged = write(one, topic)
    losses = one.power_cut(seed=seed)
    assert any(topic in loss.path and loss.lost_bytes for loss in losses), losses
    one.restart(1)
    one.wait_until(topic, leader=1)
    left = one.high_watermark(topic)
    assert left is not None
    assert left < acknowledged
    write(one, topic, 10)
    assert one.high_watermark(topic) == left + 10


def test_a_kill_is_no_power_cut(one: Cluster) -> None:
    """B3: SIGKILL keeps the page cache."""
    one.create_topic("killed")
    acknowledged = write(one, "killed")
    one.kill(1)
    one.restart(1)
    one.wait_until("killed", leader=1)
    assert one.high_watermark("killed") == acknowledged


def test_nothing_is_recorded_unless_asked_for() -> None:
    with EmbeddedBroker() as broker:
        broker.kill()
        assert not list(broker.data_dir.parent.rglob("*.durable"))
        with pytest.raises(NothingRecorded, match="start it with GAPLESS_RECORD_FSYNCS=1"):
            lose_unsynced(broker.data_dir)


# ---------------------------------------------------------------------------------------------- the model


def sync(recorder: Recorder, path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    (recorder.sync_folder if path.is_dir() else recorder.sync_file)(fd)
    os.close(fd)


@pytest.mark.parametrize("seed", range(20))
def test_a_file_keeps_what_was_synced_and_no_more_than_it_had(tmp_path: Path, seed: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "old").write_bytes(b"there before")
    recorder = Recorder(str(data))
    (data / "log").write_bytes(b"synced")
    sync(recorder, data / "log")
    sync(recorder, data)
    with (data / "log").open("ab") as log:
        log.write(b", and not")
    (data / "new").write_bytes(b"never synced")
    lose_unsynced(data, seed)
    kept = (data / "log").read_bytes()
    assert kept.startswith(b"synced")
    assert len(kept) < len(b"synced, and not")
    assert (data / "old").read_bytes() == b"there before"
    assert not (data / "new").exists() or (data / "new").stat().st_size < len(b"never synced")


def test_a_name_that_was_not_synced_may_be_the_old_one(tmp_path: Path) -> None:
    """A file that was replaced or deleted is, after the cut, the old one or the new one: never a mixture."""
    found = set()
    for seed in range(20):
        data = tmp_path / str(seed)
        data.mkdir()
        recorder = Recorder(str(data))
        (data / "checkpoint").write_bytes(b"old")
        (data / "deleted").write_bytes(b"old")
        sync(recorder, data / "checkpoint")
        sync(recorder, data / "deleted")
        sync(recorder, data)
        (data / "checkpoint.tmp").write_bytes(b"new")
        sync(recorder, data / "checkpoint.tmp")
        (data / "checkpoint.tmp").rename(data / "checkpoint")
        (data / "deleted").unlink()
        lose_unsynced(data, seed)
        deleted = (data / "deleted").read_bytes() if (data / "deleted").exists() else None
        found.add(((data / "checkpoint").read_bytes(), deleted))
    assert found == {(b"old", b"old"), (b"new", None)}
