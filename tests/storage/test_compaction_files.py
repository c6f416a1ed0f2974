"""Compaction on files: whatever moment a crash picks, the log is the old one or the new one."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import pytest

from gapless.core.log import Cleaning, LogConfig, LogFailed
from gapless.storage import FileLog, FileLogStore, compaction, disk
from gapless.storage.disk import Disk
from gapless.testing.apache_kafka import kafka_tool
from tests.storage.helpers import TOPIC, crashed_copy, flush, names, open_log
from tests.storage.test_compaction import (
    clean,
    end,
    fill_keys,
    latest_of,
    plan,
    put,
    roll,
    survivors,
    transact,
)

TIGHT = LogConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=0)
LEFTOVER = re.compile(r"\.(cleaned|swap|tmp)$")


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a short log take many steps."""
    monkeypatch.setattr(compaction, "SLICE_BYTES", 200)


def dirty_log(store: FileLogStore) -> FileLog:
    """Some segments that were cleaned before, and are small now, and others with an aborted transaction."""
    log = open_log(store, TIGHT)
    fill_keys(log, 60)
    roll(log)
    clean(log)
    first = transact(log, 9, ("k0", "aborted"))
    end(log, 9, committed=False, first_offset=first)
    fill_keys(log, 40)
    roll(log)
    put(log, ("active", "1"))
    flush(log)
    store.write_checkpoints()
    return log


def finish(cleaning: Cleaning | None) -> None:
    assert cleaning is not None
    while not cleaning.step():
        pass


def opened(folder: Path) -> tuple[FileLogStore, FileLog]:
    store = FileLogStore(folder)
    return store, open_log(store, TIGHT)


def test_a_crash_at_any_moment_leaves_the_old_or_the_new(
    store: FileLogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = dirty_log(store)
    before = survivors(log)
    copies: list[Path] = []

    def crash() -> None:
        copies.append(crashed_copy(store, tmp_path / f"crash{len(copies)}"))

    rename = disk.rename

    def watched(old: str, new: str) -> None:
        rename(old, new)
        crash()

    monkeypatch.setattr(disk, "rename", watched)
    cleaning = log.begin_cleaning(plan(log))
    assert cleaning is not None
    steps = 1
    while not cleaning.step():
        if steps % 10 == 0:
            crash()
        steps += 1
    monkeypatch.setattr(disk, "rename", rename)
    after = survivors(log)
    assert len(after) < len(before)
    assert steps > 10
    assert len(copies) > 20
    expected = set(after)
    for folder in copies:
        again, found = opened(folder)
        left = survivors(found)
        assert expected <= set(left) <= set(before)
        assert found.end_offset == log.end_offset
        assert found.recovery.reason is None
        assert not [name for name in names(folder / f"{TOPIC}-0") if LEFTOVER.search(name)]
        slice_ = found.read(0, 1 << 20, found.end_offset, at_least_one=True)
        assert slice_.size > 0
        clean(found)
        assert [each for each in survivors(found) if each[1]] == [each for each in after if each[1]]
        again.close()
        shutil.rmtree(folder)


def test_an_exchange_that_was_cut_short_is_completed_with_its_aborted_transactions(
    store: FileLogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = dirty_log(store)
    rename = disk.rename

    class Killed(Exception):
        pass

    def die(old: str, new: str) -> None:
        rename(old, new)
        if new.endswith(".log.swap"):
            raise Killed

    monkeypatch.setattr(disk, "rename", die)
    cleaning = log.begin_cleaning(plan(log))
    assert cleaning is not None
    with pytest.raises(Killed):
        finish(cleaning)
    monkeypatch.setattr(disk, "rename", rename)
    folder = crashed_copy(store, tmp_path / "crashed")
    bases = [info.base_offset for info in log.segments()]
    again, found = opened(folder)
    assert len(found.segments()) < len(bases), "the sources that were merged are gone"
    again.close()


def test_a_failed_exchange_takes_the_log_offline_and_a_restart_completes_it(
    store: FileLogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = dirty_log(store)
    before = survivors(log)
    rename = disk.rename

    def fail(old: str, new: str) -> None:
        if old.endswith(".index.swap"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(old, new)

    monkeypatch.setattr(disk, "rename", fail)
    cleaning = log.begin_cleaning(plan(log))
    with pytest.raises(LogFailed, match="compacted segments"):
        finish(cleaning)
    monkeypatch.setattr(disk, "rename", rename)
    with pytest.raises(LogFailed):
        put(log, ("k", "refused"))
    again, found = opened(crashed_copy(store, tmp_path / "crashed"))
    assert set(survivors(found)) <= set(before)
    assert latest_of(survivors(found)) == latest_of(before)
    assert found.recovery.reason is None
    again.close()


def test_without_any_checkpoint_a_compacted_log_is_checked_and_kept(
    store: FileLogStore, tmp_path: Path
) -> None:
    log = dirty_log(store)
    clean(log)
    before = survivors(log)
    folder = crashed_copy(store, tmp_path / "crashed")
    for path in folder.glob("*-checkpoint"):
        path.unlink()
    for path in [*folder.glob("*/*.index"), *folder.glob("*/*.timeindex"), *folder.glob("*/leader-*")]:
        path.unlink()
    again, found = opened(folder)
    assert found.recovery.scanned_bytes == found.size_bytes
    assert found.recovery.reason is None
    assert survivors(found) == before
    again.close()


def test_a_full_disk_ends_the_pass_and_nothing_else(tmp_path: Path) -> None:
    full = False

    def pwrite(fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, position)

    store = FileLogStore(tmp_path / "data", Disk(pwrite=pwrite))
    log = dirty_log(store)
    before = survivors(log)
    cleaning = log.begin_cleaning(plan(log))
    assert cleaning is not None
    full = True
    while not cleaning.step():
        pass
    full = False
    assert survivors(log) == before
    assert not [name for name in names(Path(log.directory)) if LEFTOVER.search(name)]
    put(log, ("k", "goes on"))
    clean(log)
    assert [each for each in survivors(log) if each[1]] != before
    store.close()


def test_the_checkpoint_of_the_cleaner_is_kafkas(store: FileLogStore) -> None:
    log = dirty_log(store)
    clean(log)
    store.write_checkpoints()
    written = (Path(store.location) / "cleaner-offset-checkpoint").read_text()
    assert written == f"0\n1\n{TOPIC} 0 {log.cleaned_offset}\n"


def test_what_is_not_on_disk_is_not_cleaned(store: FileLogStore) -> None:
    log = open_log(store, TIGHT)
    fill_keys(log, 60)
    roll(log)
    assert log.begin_cleaning(plan(log)) is None
    flush(log)
    assert log.begin_cleaning(plan(log)) is not None


def test_readers_keep_what_they_were_given(store: FileLogStore) -> None:
    log = dirty_log(store)
    slice_ = log.read(0, 1 << 20, log.end_offset, at_least_one=True)
    before = bytes(slice_.read(0, slice_.size))
    clean(log)
    job = store.prepare_deletions(1000)
    assert job is not None
    job.run()
    assert bytes(slice_.read(0, slice_.size)) == before
    assert not [name for name in names(Path(log.directory)) if name.endswith(".deleted")]


@pytest.mark.java_clients
def test_the_dump_tool_reads_a_compacted_log(store: FileLogStore) -> None:
    log = dirty_log(store)
    put(log, ("gone", None))
    roll(log)
    clean(log)
    left = latest_of(survivors(log))
    store.close_cleanly()
    folder = Path(store.location) / f"{TOPIC}-0"
    suffixes = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    files = sorted(str(path) for path in folder.iterdir() if path.suffix in suffixes and path.stat().st_size)
    ran = kafka_tool("kafka-dump-log", "--deep-iteration", "--files", ",".join(files))
    dumped = ran.stdout + ran.stderr
    assert set(re.findall(r"^baseOffset: .* isvalid: (\w+)", dumped, re.MULTILINE)) == {"true"}
    assert "deleteHorizonMs: OptionalLong[1500]" in dumped
    offsets = {int(offset) for offset in re.findall(r"^\| offset: (\d+)", dumped, re.MULTILINE)}
    assert {offset for offset, key, _ in left if key} <= offsets
    for complaint in ("Mismatches in", "Found ", "not found in the log", "corrupt"):
        assert complaint not in dumped, dumped[-2000:]
