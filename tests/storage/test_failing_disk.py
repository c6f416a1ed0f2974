"""A disk that is full or broken: what was appended stays readable, and nothing more is promised."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gapless.core.log import LogConfig, LogFailed
from gapless.storage import FileLogStore
from gapless.storage.disk import Bytes, Disk
from tests.storage.helpers import (
    append_one,
    contents,
    crashed_copy,
    fill,
    flush,
    log_file,
    open_log,
    read_all,
)

BIG = LogConfig(segment_bytes=1 << 30, index_interval_bytes=4096)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file may grow beyond this: the write that crosses it is cut short, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_cut_short_is_taken_back_and_the_log_takes_no_more(store: FileLogStore) -> None:
    log = open_log(store, BIG)
    batches = fill(log, 10)
    path = log_file(store)
    size = path.stat().st_size
    with file_size_limit(size + 50), pytest.raises(LogFailed) as failed:
        append_one(log, value=b"x" * 100)
    assert str(failed.value) == (
        f"cannot append to {path}: File too large; raise the limit on file sizes (ulimit -f) or "
        "lower segment.bytes, then restart the broker"
    )
    assert path.stat().st_size == size
    assert log.end_offset == 10
    assert read_all(log) == b"".join(batches)
    with pytest.raises(LogFailed, match="File too large"):
        append_one(log)
    assert path.stat().st_size == size


def test_after_a_failed_write_a_restart_goes_on_where_the_last_whole_append_ended(
    store: FileLogStore,
) -> None:
    log = open_log(store, BIG)
    batches = fill(log, 10)
    with file_size_limit(log_file(store).stat().st_size + 50), pytest.raises(LogFailed):
        append_one(log, value=b"x" * 100)
    store.close_cleanly()
    again = FileLogStore(store.location)
    assert not again.clean_stop
    log = open_log(again, BIG)
    assert log.recovery.truncated_bytes == 0
    batches.append(append_one(log))
    assert read_all(log) == b"".join(batches)
    again.close()


def test_a_short_write_without_an_error_is_completed(tmp_path: Path) -> None:
    calls = []

    def stingy(fd: int, data: Bytes, position: int) -> int:
        calls.append(len(data))
        return os.pwrite(fd, memoryview(data)[:37], position)

    store = FileLogStore(tmp_path, Disk(pwrite=stingy))
    log = open_log(store, BIG)
    batches = fill(log, 3)
    assert len(calls) > 3
    assert read_all(log) == b"".join(batches)
    store.close()


def failing(error: int) -> OSError:
    return OSError(error, os.strerror(error))


@pytest.mark.parametrize(("error", "advice"), [(errno.EIO, "dmesg"), (errno.ENOSPC, "free space")])
def test_an_append_that_fails_says_what_to_do(tmp_path: Path, error: int, advice: str) -> None:
    broken = False

    def pwrite(fd: int, data: Bytes, position: int) -> int:
        if broken:
            raise failing(error)
        return os.pwrite(fd, data, position)

    store = FileLogStore(tmp_path, Disk(pwrite=pwrite))
    log = open_log(store, BIG)
    batches = fill(log, 5)
    broken = True
    with pytest.raises(LogFailed, match=f"cannot append to .*0.log: {os.strerror(error)}; .*{advice}"):
        append_one(log)
    broken = False
    with pytest.raises(LogFailed, match=os.strerror(error)):
        append_one(log)
    assert read_all(log) == b"".join(batches)
    assert contents(log.read(3, 10, 5, at_least_one=True)) == batches[3]
    store.close()


def test_a_sync_that_failed_is_never_tried_again_and_promises_nothing(tmp_path: Path) -> None:
    syncs = []
    broken = True

    def fdatasync(fd: int) -> None:
        syncs.append(fd)
        if broken:
            raise failing(errno.EIO)

    store = FileLogStore(tmp_path / "data", Disk(fdatasync=fdatasync))
    log = open_log(store, BIG)
    batches = fill(log, 5)
    job = log.prepare_flush()
    assert job is not None
    with pytest.raises(
        LogFailed, match=r"cannot make durable what was written to .*0.log: Input/output error"
    ):
        job.run()
    broken = False
    assert len(syncs) == 1
    assert log.flushed_offset == 0
    for refused in (lambda: append_one(log), log.prepare_flush, lambda: log.truncate_to(1)):
        with pytest.raises(LogFailed, match="Input/output error"):
            refused()
    assert read_all(log) == b"".join(batches)
    store.close_cleanly()
    assert len(syncs) == 3  # the two checkpoints, and no mark of a clean stop
    again = FileLogStore(tmp_path / "data")
    assert not again.clean_stop
    log = open_log(again, BIG)
    assert log.recovery.scanned_bytes == log.size_bytes
    again.close()


def test_a_failing_index_write_does_not_undo_the_append(
    store: FileLogStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gapless.storage.segment.GROUP", 1)
    log = open_log(store, LogConfig(segment_bytes=1 << 30, index_interval_bytes=0))
    append_one(log)
    log_file(store, suffix=".index").unlink()
    log_file(store, suffix=".index").mkdir()  # opening it to write fails
    append_one(log)
    assert log.end_offset == 2
    with pytest.raises(LogFailed, match=r"cannot write the index .*\.index: Is a directory"):
        append_one(log)
    assert len(read_all(log)) == log.size_bytes
    crashed = crashed_copy(store, tmp_path / "crashed")
    (crashed / "orders-0" / log_file(store, suffix=".index").name).rmdir()
    again = FileLogStore(crashed)
    assert open_log(again).end_offset == 2
    again.close()


def test_a_segment_that_cannot_be_begun_fails_the_log(store: FileLogStore) -> None:
    log = open_log(store, LogConfig(segment_bytes=200, index_interval_bytes=4096))
    batch = append_one(log, value=b"x" * 150)
    log_file(store, 1).mkdir()
    with pytest.raises(LogFailed, match=r"cannot begin a new segment in .*1.log: Is a directory"):
        append_one(log, value=b"x" * 150)
    assert read_all(log) == batch
    with pytest.raises(LogFailed):
        append_one(log)


FILL_A_SMALL_DISK = """
import json, sys
from pathlib import Path
from gapless.core.log import LogConfig, LogFailed
from gapless.storage import FileLogStore
from tests.storage.helpers import append_one, open_log, read_all, flush
store = FileLogStore(sys.argv[1])
log = open_log(store, LogConfig(segment_bytes=1 << 20, index_interval_bytes=4096))
written = b""
try:
    while len(written) < 10_000_000:
        written += append_one(log, value=b"x" * 3000)
    failure = None
except LogFailed as error:
    failure = str(error)
readable = read_all(log) == written
store.close()
for path in [*Path(sys.argv[1]).glob("*/*.index"), *Path(sys.argv[1]).glob("*/*.timeindex")]:
    path.unlink()
try:
    with open(sys.argv[1] + "/junk", "wb", buffering=0) as junk:
        while True:
            junk.write(bytes(4096))
except OSError:
    pass
again = FileLogStore(sys.argv[1])
log = open_log(again, LogConfig(segment_bytes=1 << 20, index_interval_bytes=4096))
print(json.dumps({
    "failure": failure, "readable": readable, "after_restart": read_all(log) == written,
    "truncated": log.recovery.truncated_bytes, "bytes": len(written),
}))
"""


def test_a_really_full_disk_loses_nothing_that_was_appended_and_can_be_opened_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    own_mounts = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    script = f'mount -t tmpfs -o size=2m tmpfs {disk} && exec {sys.executable} -c "$0" {disk}/data'
    probe = subprocess.run(
        [*own_mounts, "mount", "-t", "tmpfs", "tmpfs", disk], capture_output=True, check=False, text=True
    )
    if probe.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {probe.stderr.strip()}")
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [*own_mounts, "sh", "-c", script, FILL_A_SMALL_DISK],
        capture_output=True,
        check=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{root}/src"},
    )
    result = json.loads(ran.stdout)
    assert "No space left on device; free space on that disk or lower retention" in result["failure"]
    assert result["bytes"] > 1_500_000
    assert result["readable"]
    assert result["after_restart"]
    assert result["truncated"] == 0


def test_reading_a_slice_whose_end_was_cut_says_so(store: FileLogStore) -> None:
    log = open_log(store, BIG)
    fill(log, 10)
    records = log.read(5, 1 << 20, 10, at_least_one=True)
    log.truncate_to(6)
    with pytest.raises(LogFailed, match=r"0\.log was cut at byte \d+ while it was read"):
        contents(records)


def test_a_flush_of_a_log_that_was_deleted_meanwhile_is_no_failure(store: FileLogStore) -> None:
    log = open_log(store, BIG)
    fill(log, 5)
    job = log.prepare_flush()
    assert job is not None
    store.delete("orders", 0)
    while (deletion := store.trash.take(float("inf"), 10)) is not None:
        deletion.run()
    job.run()
    log.flushed(job)
    flush(open_log(store, BIG))
