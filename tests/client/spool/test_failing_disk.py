"""A full or failing disk is an error to every caller whose record is not stored, and never a silent drop."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gapless.client.spool import Spool, SpoolFailed, Ticket, blocks
from gapless.client.spool.inspect import verify

from .disks import BROKEN, NO_SPACE, FaultyDisk, open_spool, read_everything, segments, store

Break = Callable[[FaultyDisk], None]


def refuse_writes(disk: FaultyDisk) -> None:
    disk.write_error = NO_SPACE


def tear_writes(disk: FaultyDisk) -> None:
    disk.write_error = NO_SPACE
    disk.written_of_failed = 60


def tear_writes_for_good(disk: FaultyDisk) -> None:
    tear_writes(disk)
    disk.cut_error = BROKEN


def fail_syncs(disk: FaultyDisk) -> None:
    disk.sync_error = BROKEN


def fail_syncs_and_cuts(disk: FaultyDisk) -> None:
    disk.sync_error = disk.cut_error = BROKEN


WAYS = [refuse_writes, tear_writes, tear_writes_for_good, fail_syncs, fail_syncs_and_cuts]


def fails(spool: Spool, ticket: Ticket) -> bool:
    with pytest.raises(SpoolFailed, match="could not store"):
        spool.wait_stored(ticket, timeout=30)
    return ticket.failure is not None and not ticket.is_stored


@pytest.mark.parametrize("break_it", WAYS)
def test_every_record_of_a_failed_group_tells_so_and_the_next_ones_take_its_place(
    tmp_path: Path, break_it: Break
) -> None:
    disk = FaultyDisk()
    heard: list[SpoolFailed] = []
    with open_spool(tmp_path, disk=disk, linger_s=3600) as spool:
        spool.on_failed(heard.append)
        store(spool, b"before")
        break_it(disk)
        lost = [spool.append("orders", partition, b"lost") for partition in (0, 0, 1)]
        assert all(fails(spool, ticket) for ticket in lost)
        with pytest.raises(SpoolFailed):  # now the disk is known to refuse: the caller hears it at once
            spool.append("orders", 0, b"lost too")
        assert len(heard) == 2
        assert (spool.stored, spool.end) == (1, 1)
        assert read_everything(spool)[0].value == b"before"
        disk.heal()
        ticket = spool.append("orders", 0, b"after")
        assert ticket.is_stored
        assert (ticket.position, ticket.sequence) == (1, 1)
        store(spool, b"and on", partition=1)
        expected = [b"before", b"after", b"and on"]
        assert [record.value for record in read_everything(spool)] == expected
        assert not verify(tmp_path).problems
    with open_spool(tmp_path) as spool:
        assert [record.value for record in read_everything(spool)] == expected
        assert [record.sequence for record in read_everything(spool)] == [0, 1, 0]
        store(spool, b"later")


def test_after_a_failed_sync_its_file_is_never_written_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_spool(tmp_path, disk=disk) as spool:
        store(spool, b"before")
        disk.sync_error = BROKEN
        assert fails(spool, spool.append("orders", 0, b"lost"))
        disk.heal()
        store(spool, b"after")
        assert [path.name for path in segments(tmp_path)] == [f"{0:020d}.segment", f"{1:020d}.segment"]


def test_what_is_appended_behind_a_failing_group_fails_with_it(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    class SlowDisk(FaultyDisk):
        def sync(self, fd: int) -> None:
            if self.sync_error is not None:
                entered.set()
                assert leave.wait(30)
            super().sync(fd)

    disk = SlowDisk()
    with open_spool(tmp_path, disk=disk, linger_s=0.001) as spool:
        store(spool, b"before")
        disk.sync_error = BROKEN
        first = spool.append("orders", 0, b"lost")
        assert entered.wait(30)
        behind = spool.append("orders", 0, b"lost behind it")
        assert behind.sequence == 2
        leave.set()
        assert fails(spool, behind)
        assert fails(spool, first)
        disk.heal()
        store(spool, b"after")
        assert [(r.sequence, r.value) for r in read_everything(spool)] == [(0, b"before"), (1, b"after")]


def test_closing_over_a_failing_disk_says_what_was_not_stored(tmp_path: Path) -> None:
    disk = FaultyDisk()
    spool = open_spool(tmp_path, disk=disk, linger_s=3600)
    store(spool, b"before")
    disk.write_error = NO_SPACE
    ticket = spool.append("orders", 0, b"lost")
    with pytest.raises(SpoolFailed, match="No space left"):
        spool.close()
    assert ticket.failure
    with open_spool(tmp_path) as spool:  # and the folder was let go
        assert spool.stored == 1


def test_a_segment_that_cannot_be_begun_fails_the_group_and_is_tried_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_spool(tmp_path, disk=disk, segment_bytes=100) as spool:
        store(spool, b"x" * 200)
        disk.write_error = NO_SPACE
        assert fails(spool, spool.append("orders", 0, b"lost"))
        disk.heal()
        store(spool, b"after")
    with open_spool(tmp_path) as spool:
        assert [record.value for record in read_everything(spool)] == [b"x" * 200, b"after"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can only be mounted by root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_really_full_disk_is_told_and_survived(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300_000))
    with open_spool(small_disk / "spool") as spool:
        with pytest.raises(SpoolFailed, match="No space left on device"):
            store(spool, *(b"%05d" % number * 200 for number in range(10_000)))
        accepted = spool.stored
        assert accepted > 100
        ballast.unlink()
        store(spool, b"after")
        values = [record.value for record in read_everything(spool)]
        assert values == [*(b"%05d" % number * 200 for number in range(accepted)), b"after"]
    with open_spool(small_disk / "spool") as spool:
        assert [record.value for record in read_everything(spool)] == values


def test_a_disk_too_full_to_begin_on_gives_one_clear_error(small_disk: Path) -> None:
    ballast = (small_disk / "ballast").open("wb")
    with ballast, pytest.raises(OSError, match="No space"):
        ballast.write(bytes(2_000_000))
    with pytest.raises(SpoolFailed, match="cannot be opened: No space left on device"):
        open_spool(small_disk / "spool")


def test_even_a_mistake_of_ours_reaches_every_caller_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, b"before")
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "encode_body", lambda *_: 1 // 0)
            assert fails(spool, spool.append("orders", 0, b"lost"))
        store(spool, b"after")
        assert [(r.sequence, r.value) for r in read_everything(spool)] == [(0, b"before"), (1, b"after")]
    assert "ZeroDivisionError" in caplog.text
