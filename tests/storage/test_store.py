"""The data folder: who may use it, what belongs to whom, and what is deleted when."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from gapless.core.log import LogConfig, LogFailed
from gapless.storage import DataDirInUse, DataDirUnusable, FileLogStore, formats
from gapless.storage.file_store import Kept
from tests.storage.helpers import (
    SMALL,
    TOPIC,
    TOPIC_ID,
    append_one,
    contents,
    fill,
    flush,
    log_file,
    names,
    open_log,
    read_all,
)


def test_a_folder_in_use_is_refused_in_one_clear_line(store: FileLogStore) -> None:
    with pytest.raises(DataDirInUse) as refused:
        FileLogStore(store.location)
    assert str(refused.value) == (
        f"the data folder {store.location} is in use by another broker: "
        "stop it, or give --data another folder"
    )


def test_another_process_is_refused_and_a_child_does_not_inherit_the_lock(store: FileLogStore) -> None:
    script = "import sys; from gapless.storage import FileLogStore; FileLogStore(sys.argv[1])"
    other = [sys.executable, "-c", script, store.location]
    assert b"DataDirInUse" in subprocess.run(other, capture_output=True, check=False).stderr
    lasting = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        store.close()
        subprocess.run(other, check=True)
    finally:
        lasting.kill()
        lasting.wait()


def test_a_folder_that_cannot_be_made_is_refused_in_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirUnusable, match=r"cannot use the data folder .*/file/data: Not a directory"):
        FileLogStore(tmp_path / "file" / "data")


def test_whose_folder_it_is_can_be_written_and_read(store: FileLogStore) -> None:
    assert store.read_meta() is None
    meta = formats.MetaProperties("cluster", 3, uuid4())
    store.write_meta(meta)
    assert store.read_meta() == meta
    (Path(store.location) / "meta.properties").write_text("version=1\n")
    with pytest.raises(
        DataDirUnusable, match=r"meta\.properties: it lacks cluster\.id, node\.id, directory\.id"
    ):
        store.read_meta()


def test_a_log_has_the_files_that_kafka_gives_it(store: FileLogStore) -> None:
    log = open_log(store)
    append_one(log)
    log.save_producers([])
    store.close_cleanly()
    base = f"{0:020d}"
    assert names(Path(store.location) / f"{TOPIC}-0") == {
        *(base + suffix for suffix in (".log", ".index", ".timeindex")),
        f"{1:020d}.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    }
    assert names(Path(store.location)) >= {
        f"{TOPIC}-0",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        ".kafka_cleanshutdown",
    }
    assert (Path(store.location) / "recovery-point-offset-checkpoint").read_text() == f"0\n1\n{TOPIC} 0 1\n"


def test_the_folder_of_another_topic_of_that_name_is_moved_aside(
    store: FileLogStore, caplog: pytest.LogCaptureFixture
) -> None:
    fill(open_log(store), 10)
    store.close_cleanly()
    again = FileLogStore(store.location)
    with caplog.at_level(logging.WARNING):
        log = again.open(TOPIC, uuid4(), 0, SMALL)
    assert (log.start_offset, log.end_offset) == (0, 0)
    (stray,) = [name for name in names(Path(store.location)) if name.endswith("-stray")]
    assert stray.startswith(f"{TOPIC}-0.")
    assert (Path(store.location) / stray / f"{0:020d}.log").stat().st_size > 0
    assert stray in caplog.text
    assert again.partitions_on_disk() == [(TOPIC, 0)]
    append_one(log)
    again.close_cleanly()
    third = FileLogStore(store.location)  # strays are for a person to look at: nothing deletes them
    assert third.prepare_deletions() is None
    assert stray in names(Path(store.location))
    third.close()


@pytest.mark.parametrize("contents", [None, b"", b"version: 0\ntopic"])
def test_a_folder_whose_owner_a_crash_has_lost_is_taken_over(
    store: FileLogStore, contents: bytes | None
) -> None:
    fill(open_log(store), 10)
    store.close_cleanly()
    path = log_file(store).with_name("partition.metadata")
    path.unlink() if contents is None else path.write_bytes(contents)
    again = FileLogStore(store.location)
    assert open_log(again).end_offset == 10
    assert formats.decode_partition_metadata(path.read_bytes()) == TOPIC_ID
    again.close()


class Clock:
    """Time that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_dropped_segments_are_deleted_after_the_delay_a_few_at_a_time(tmp_path: Path) -> None:
    clock = Clock()
    store = FileLogStore(tmp_path, clock=clock)
    log = open_log(store, replace(SMALL, file_delete_delay_ms=5000))
    batches = fill(log, 400)
    dropped = len(log.segments()) - 1
    records = log.read(0, 1 << 20, 400, at_least_one=True)
    log.advance_start(log.segments()[-1].base_offset)
    folder = tmp_path / f"{TOPIC}-0"
    assert len([name for name in names(folder) if name.endswith(".deleted")]) == 3 * dropped
    assert store.prepare_deletions() is None
    clock.now += 5
    job = store.prepare_deletions(limit=4)
    assert job is not None
    assert len(job.paths) == 4
    while job is not None:
        job.run()
        job = store.prepare_deletions()
    assert not [name for name in names(folder) if name.endswith(".deleted")]
    assert contents(records) == b"".join(batches)[: records.size]
    store.close()


def test_a_deleted_topic_goes_at_once_by_name_and_later_from_disk(tmp_path: Path) -> None:
    clock = Clock()
    store = FileLogStore(tmp_path, clock=clock)
    log = open_log(store)
    fill(log, 10)
    store.delete(TOPIC, 0)
    assert store.partitions_on_disk() == []
    (moved,) = [name for name in names(tmp_path) if name.endswith("-delete")]
    assert moved.startswith(f"{TOPIC}-0.")
    with pytest.raises(LogFailed):
        append_one(log)
    clock.now += 60
    job = store.prepare_deletions()
    assert job is not None
    job.run()
    assert moved not in names(tmp_path)
    store.close()


def test_what_a_deletion_left_behind_is_deleted_at_the_next_start(store: FileLogStore) -> None:
    fill(open_log(store), 10)
    store.delete(TOPIC, 0)
    store.delete("never-was", 3)
    store.close()
    again = FileLogStore(store.location)
    job = again.prepare_deletions()
    assert job is not None
    job.run()
    assert not [name for name in names(Path(store.location)) if name.endswith("-delete")]
    again.close()


def test_a_topic_with_the_longest_name_can_be_deleted(store: FileLogStore) -> None:
    topic = "t" * 249
    store.open(topic, TOPIC_ID, 0, SMALL)
    store.delete(topic, 0)
    assert [len(name) for name in names(Path(store.location)) if name.endswith("-delete")] == [255]


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "/etc"])
def test_names_that_lead_out_of_the_folder_are_refused(store: FileLogStore, topic: str) -> None:
    with pytest.raises(ValueError, match="cannot be opened"):
        store.open(topic, TOPIC_ID, 0, SMALL)


def test_a_log_is_opened_once(store: FileLogStore) -> None:
    open_log(store)
    with pytest.raises(ValueError, match="it is open"):
        open_log(store)


def test_checkpoints_keep_what_they_know_of_logs_that_are_not_open(store: FileLogStore) -> None:
    for partition in (0, 1):
        log = open_log(store, partition=partition)
        fill(log, 10)
        log.advance_start(4)
    store.close_cleanly()
    again = FileLogStore(store.location)
    log = open_log(again, partition=1)
    append_one(log)
    flush(log)
    again.close_cleanly()
    assert (Path(store.location) / "recovery-point-offset-checkpoint").read_text() == (
        f"0\n2\n{TOPIC} 0 10\n{TOPIC} 1 11\n"
    )
    third = FileLogStore(store.location)
    log = open_log(third, partition=0)
    assert (log.start_offset, log.end_offset, log.recovery.scanned_bytes) == (4, 10, 0)
    third.close()


def test_the_free_space_is_known(store: FileLogStore) -> None:
    total, usable = store.space()
    assert total >= usable > 0


def test_many_clean_partitions_open_without_reading_their_data(tmp_path: Path) -> None:
    config = LogConfig()
    store = FileLogStore(tmp_path)
    for partition in range(50):
        fill(open_log(store, config, partition), 100)
    store.close_cleanly()
    again = FileLogStore(tmp_path)
    for partition in range(50):
        log = open_log(again, config, partition)
        assert log.recovery.scanned_bytes == 0
        assert log.probes.log_reads <= 6
    assert len(read_all(again.logs[TOPIC, 49])) == again.logs[TOPIC, 49].size_bytes
    again.close()


def test_a_new_boot_may_have_lost_something_unless_the_stop_was_clean(tmp_path: Path) -> None:
    def start(boot_id: str, *, stop_cleanly: bool, ends_early: bool = False) -> Kept:
        store = FileLogStore(tmp_path)
        kept = store.kept_since(boot_id)
        if not ends_early:
            store.note_boot(boot_id)
        if stop_cleanly:
            store.close_cleanly()
        else:
            store.close()
        return kept

    # A new folder: a broker that ran before under the same number has lost its disk.
    for _ in range(2):  # one that ends before it could tell so must tell it the next time
        assert start("first", stop_cleanly=False, ends_early=True) == Kept(all=False, flushed=False)
    assert start("first", stop_cleanly=False) == Kept(all=False, flushed=False)
    assert start("first", stop_cleanly=False) == Kept(all=True, flushed=True)
    assert start("second", stop_cleanly=False, ends_early=True) == Kept(all=False, flushed=True)
    assert start("second", stop_cleanly=True) == Kept(all=False, flushed=True)
    assert start("third", stop_cleanly=False) == Kept(all=True, flushed=True)
    assert start("third", stop_cleanly=False).all
    assert not start("", stop_cleanly=False).all  # a system that has no such id
    assert not start("", stop_cleanly=False).all
