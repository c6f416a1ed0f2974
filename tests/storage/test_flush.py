"""Flushing: what a job makes durable, and what happens to the log meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gapless.core.log import LogConfig, LogFailed
from gapless.storage import FileLogStore
from gapless.storage.disk import Disk
from tests.storage.helpers import SMALL, append_one, crashed_copy, fill, flush, offsets_of, open_log, read_all

BIG = LogConfig(segment_bytes=1 << 30, index_interval_bytes=200)


class Recorder:
    """Notes by name what was synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync(self, fd: int) -> None:
        self.synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    def take(self) -> list[str]:
        taken, self.synced = self.synced, []
        return taken


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def recorded(recorder: Recorder, tmp_path: Path) -> Iterator[FileLogStore]:
    store = FileLogStore(tmp_path / "data", Disk(fdatasync=recorder.sync, fsync=recorder.sync))
    yield store
    store.close()


def test_the_first_flush_makes_the_folder_durable_and_later_ones_only_the_log(
    recorded: FileLogStore, recorder: Recorder
) -> None:
    log = open_log(recorded, BIG)
    append_one(log)
    flush(log)
    first = recorder.take()
    assert first[0] == f"{0:020d}.log"
    assert {"orders-0", "data", "partition.metadata", "leader-epoch-checkpoint.1.tmp"} <= set(first)
    append_one(log)
    flush(log)
    assert recorder.take() == [f"{0:020d}.log"]
    flush(log)
    assert recorder.take() == []


def test_rolled_segments_are_made_durable_with_their_indexes_and_the_snapshot(
    recorded: FileLogStore, recorder: Recorder
) -> None:
    log = open_log(recorded, SMALL)
    flush(log)
    recorder.take()
    while len(log.segments()) < 3:
        append_one(log, value=b"x" * 300)
    bases = [info.base_offset for info in log.segments()]
    flush(log, closed_only=True)
    synced = set(recorder.take())
    for base in bases[:2]:
        assert {f"{base:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")} <= synced
    assert f"{bases[2]:020d}.snapshot" in synced
    assert f"{bases[2]:020d}.log" not in synced
    assert "orders-0" in synced
    assert log.flushed_offset == bases[2]


def test_one_flush_at_a_time(store: FileLogStore) -> None:
    log = open_log(store)
    fill(log, 3)
    job = log.prepare_flush()
    assert job is not None
    with pytest.raises(ValueError, match="under way"):
        log.prepare_flush()
    job.run()
    log.flushed(job)
    with pytest.raises(ValueError, match="reported before"):
        log.flushed(job)
    assert log.prepare_flush() is None


def test_appends_during_a_flush_are_not_promised_by_it(store: FileLogStore) -> None:
    log = open_log(store)
    fill(log, 3)
    job = log.prepare_flush()
    assert job is not None
    job.run()
    fill(log, 60)
    log.flushed(job)
    assert (job.offset, log.flushed_offset) == (3, 3)
    flush(log)
    assert log.flushed_offset == 63


def test_a_cut_during_a_flush_lowers_what_it_promises(store: FileLogStore, tmp_path: Path) -> None:
    log = open_log(store, BIG)
    fill(log, 10)
    job = log.prepare_flush()
    assert job is not None
    job.run()
    log.truncate_to(4)
    fill(log, 6)  # the same size again, but other bytes
    log.flushed(job)
    assert (job.offset, log.flushed_offset) == (4, 4)
    again = log.prepare_flush()
    assert again is not None
    assert len(again.files) == 1
    store.write_checkpoints()
    crashed = FileLogStore(crashed_copy(store, tmp_path / "crashed"))
    assert open_log(crashed, BIG).recovery.scanned_bytes == log.size_bytes * 6 // 10
    crashed.close()


def test_files_of_a_job_stay_open_while_segments_are_dropped(store: FileLogStore) -> None:
    log = open_log(store)
    fill(log, 100)
    job = log.prepare_flush()
    assert job is not None
    log.advance_start(90)
    while (deletion := store.trash.take(float("inf"), 10)) is not None:
        deletion.run()
    job.run()
    log.flushed(job)
    assert log.flushed_offset == 100


def test_recovered_bytes_are_not_promised_before_they_are_flushed(
    store: FileLogStore, tmp_path: Path
) -> None:
    fill(open_log(store), 100)
    again = FileLogStore(crashed_copy(store, tmp_path / "crashed"))
    log = open_log(again)
    assert (log.end_offset, log.flushed_offset) == (100, 0)
    job = log.prepare_flush()
    assert job is not None
    assert len(job.files) == len(log.segments())
    job.run()
    log.flushed(job)
    assert log.flushed_offset == 100
    assert len(read_all(log)) == log.size_bytes
    again.close()


def test_checkpoints_are_written_only_when_something_has_changed(
    recorded: FileLogStore, recorder: Recorder
) -> None:
    log = open_log(recorded)
    fill(log, 3)
    assert recorded.prepare_checkpoints() is None
    flush(log)
    recorder.take()
    job = recorded.prepare_checkpoints()
    assert job is not None
    job.run()
    assert recorder.take() == [
        "log-start-offset-checkpoint.tmp",
        "data",
        "recovery-point-offset-checkpoint.tmp",
        "data",
    ]
    assert recorded.prepare_checkpoints() is None


def test_an_old_checkpoint_never_overwrites_a_newer_one(store: FileLogStore) -> None:
    log = open_log(store)
    fill(log, 100)
    flush(log)
    late = store.prepare_checkpoints()
    assert late is not None
    store.write_checkpoints()
    log.truncate_to(10)  # writes a lower recovery point at once
    late.run()
    path = Path(store.location) / "recovery-point-offset-checkpoint"
    assert path.read_text() == "0\n1\norders 0 10\n"


def test_a_checkpoint_that_failed_is_tried_again(store: FileLogStore) -> None:
    flush(open_log(store))
    store.checkpoint_soon()
    job = store.prepare_checkpoints()
    assert job is not None
    obstacle = Path(store.location) / "recovery-point-offset-checkpoint.tmp"
    obstacle.mkdir()
    with pytest.raises(LogFailed, match=r"cannot write checkpoints in .*: Is a directory"):
        job.run()
    obstacle.rmdir()
    again = store.prepare_checkpoints()
    assert again is not None
    again.run()
    assert store.prepare_checkpoints() is None


def test_flushes_run_beside_appends_rolls_and_deletions(store: FileLogStore) -> None:
    log = open_log(store, LogConfig(segment_bytes=20_000, index_interval_bytes=200, file_delete_delay_ms=0))
    with ThreadPoolExecutor(1) as worker:
        running = None
        job = None
        for i in range(600):
            append_one(log, (1000 + i,), value=b"x" * 500)
            if running is None:
                job = log.prepare_flush(closed_only=i % 2 == 0)
                running = worker.submit(job.run) if job is not None else None
            elif running.done() and job is not None:
                running.result()
                log.flushed(job)
                running = None
            if i % 100 == 99:
                log.advance_start(i - 50)
                while (deletion := store.prepare_deletions()) is not None:
                    deletion.run()
        if running is not None and job is not None:
            running.result()
            log.flushed(job)
    flush(log)
    assert log.flushed_offset == log.end_offset == 600
    assert offsets_of(read_all(log)) == list(range(549, 600))
