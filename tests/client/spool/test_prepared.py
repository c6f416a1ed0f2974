"""Small groups are written over zeros, so that a sync need not change the file; zeros are never more."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from gapless.client.spool.inspect import status, verify

from .disks import FaultyDisk, open_spool, read_everything, segments, store


def test_small_groups_leave_the_length_of_the_file_as_it_is(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, b"first")
        (path,) = segments(tmp_path)
        length = path.stat().st_size
        store(spool, *[b"x" * 100] * 50)
        assert path.stat().st_size == length > spool.size_bytes
    assert path.stat().st_size == spool.size_bytes


def test_a_large_group_is_not_written_twice(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, b"x" * 100_000)
        assert segments(tmp_path)[0].stat().st_size == spool.size_bytes


def test_a_spool_with_a_bound_takes_no_more_than_its_records(tmp_path: Path) -> None:
    with open_spool(tmp_path, max_bytes=1 << 20) as spool:
        store(spool, b"first", b"second")
        assert segments(tmp_path)[0].stat().st_size == spool.size_bytes


def test_zeros_that_a_killed_process_left_are_no_torn_write(tmp_path: Path) -> None:
    with open_spool(tmp_path / "living") as spool:
        store(spool, b"1", b"2")
        shutil.copytree(tmp_path / "living", tmp_path / "killed")
    assert status(tmp_path / "killed").torn_bytes == verify(tmp_path / "killed").torn_bytes == 0
    length = segments(tmp_path / "killed")[0].stat().st_size
    with open_spool(tmp_path / "killed") as spool:
        assert spool.cut_bytes == 0
        store(spool, b"3")
        assert segments(tmp_path / "killed")[0].stat().st_size == length
        assert [record.value for record in read_everything(spool)] == [b"1", b"2", b"3"]


def test_a_torn_write_over_zeros_is_cut_and_told(tmp_path: Path) -> None:
    with open_spool(tmp_path / "living") as spool:
        store(spool, b"1")
        end = spool.size_bytes
        shutil.copytree(tmp_path / "living", tmp_path / "cut")
    (path,) = segments(tmp_path / "cut")
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"GSB\x01torn")
    assert status(tmp_path / "cut").torn_bytes == verify(tmp_path / "cut").torn_bytes == 8
    with open_spool(tmp_path / "cut") as spool:
        assert spool.cut_bytes == 8
        assert path.stat().st_size == end
        store(spool, b"2")
        assert [record.value for record in read_everything(spool)] == [b"1", b"2"]


class NearlyFullDisk(FaultyDisk):
    """Has room for records, not for zeros."""

    def write(self, fd: int, pieces: Sequence[bytes], offset: int) -> None:
        if sum(map(len, pieces)) > 100_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(fd, pieces, offset)


@pytest.mark.parametrize("groups", [1, 20])
def test_a_disk_without_room_for_zeros_takes_the_records(tmp_path: Path, groups: int) -> None:
    with open_spool(tmp_path, disk=NearlyFullDisk()) as spool:
        store(spool, *[b"x"] * groups)
        assert segments(tmp_path)[0].stat().st_size == spool.size_bytes
    assert verify(tmp_path).records == groups
