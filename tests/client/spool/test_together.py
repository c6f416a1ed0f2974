"""Records that are given in one call are stored together or not at all, as if they had come one by one."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gapless.client.spool import Spool, SpoolClosed, SpoolFailed, SpoolFull
from gapless.client.spool.blocks import Rows, Stream
from gapless.client.spool.group import Group
from gapless.client.spool.inspect import verify
from gapless.errors import UsageError

from .disks import BROKEN, NO_SPACE, FaultyDisk, open_spool, read_everything, segments, store

HEADERS = (("trace", b"7"), ("empty", None))


def mixed(spool: Spool) -> None:
    spool.append("orders", 0, b"alone")
    spool.append_many("orders", 0, [b"a", None, b""], [b"k", None, b""], HEADERS, 1_700_000_000_000)
    spool.append("orders", 1, b"between")
    spool.append_many("orders", 0, (b"%d" % number for number in range(3)))
    spool.append_many("orders", [2, 0, 2, 1], [b"p", b"q", b"r", b"s"])
    assert spool.append_many("orders", 0, []) == []
    spool.wait_stored(spool.append("orders", 0, b"last"))


def one_by_one(spool: Spool) -> None:
    spool.append("orders", 0, b"alone")
    for value, key in ((b"a", b"k"), (None, None), (b"", b"")):
        spool.append("orders", 0, value, key, HEADERS, 1_700_000_000_000)
    spool.append("orders", 1, b"between")
    for number in range(3):
        spool.append("orders", 0, b"%d" % number)
    for partition, value in ((2, b"p"), (0, b"q"), (2, b"r"), (1, b"s")):
        spool.append("orders", partition, value)
    spool.wait_stored(spool.append("orders", 0, b"last"))


def contents(spool: Spool, max_records: int) -> list[tuple[object, ...]]:
    return [(r.position, *r[2:]) for r in read_everything(spool, max_records=max_records)]


def test_they_come_back_as_if_they_had_come_one_by_one(tmp_path: Path) -> None:
    found = []
    for name, fill in (("together", mixed), ("alone", one_by_one)):
        with open_spool(tmp_path / name, linger_s=3600) as spool:
            fill(spool)
            found += [contents(spool, 100), contents(spool, 2)]
            assert [spool.next_sequence("orders", partition) for partition in range(3)] == [9, 2, 2]
        with open_spool(tmp_path / name) as spool:  # from disk now
            found += [contents(spool, 100), contents(spool, 2)]
        assert not verify(tmp_path / name).problems
    assert found[1:] == found[:-1]
    bytes_of = [segments(tmp_path / name)[0].stat().st_size for name in ("together", "alone")]
    assert bytes_of[0] == bytes_of[1]


def test_each_has_a_ticket_and_the_next_sequence_of_its_partition(tmp_path: Path) -> None:
    with open_spool(tmp_path, linger_s=3600) as spool:
        spool.append("orders", 0, b"before")
        tickets = spool.append_many("orders", [0, 1, 0], [b"a", b"b", b"c"])
        assert [(each.position, each.sequence) for each in tickets] == [(1, 1), (2, 0), (3, 2)]
        assert not tickets[0].is_stored
        assert spool.end == 4
        after = spool.append("orders", 0, b"after")
        assert (after.position, after.sequence) == (4, 3)
        assert spool.wait_stored(tickets[0])
        assert tickets[-1].is_stored
        assert after.is_stored


def test_one_sync_is_for_all_of_them(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_spool(tmp_path, disk=disk, linger_s=3600) as spool:
        before = disk.syncs
        spool.wait_stored(spool.append_many("orders", 0, [b"x"] * 10_000)[-1])
        assert disk.syncs == before + 1


def test_a_torn_write_leaves_none_of_them(tmp_path: Path) -> None:
    with open_spool(tmp_path, prepare_bytes=0) as spool:
        store(spool, b"before")
        spool.wait_stored(spool.append_many("orders", 0, [b"x" * 100] * 50)[-1])
    (path,) = segments(tmp_path)
    (tmp_path / "hints").unlink()  # they say how much was stored: the sync was never answered
    path.write_bytes(path.read_bytes()[:-1])
    with open_spool(tmp_path) as spool:
        assert (spool.stored, spool.next_sequence("orders", 0)) == (1, 1)
        assert spool.cut_bytes > 50 * 100


@pytest.mark.parametrize("error", [NO_SPACE, BROKEN])
def test_a_failing_disk_fails_all_of_them_and_the_next_take_their_place(tmp_path: Path, error: int) -> None:
    disk = FaultyDisk()
    with open_spool(tmp_path, disk=disk, linger_s=3600) as spool:
        store(spool, b"before")
        disk.write_error, disk.sync_error = (error, None) if error == NO_SPACE else (None, error)
        lost = spool.append_many("orders", [0, 1, 0, 1, 0], [b"lost"] * 5)
        with pytest.raises(SpoolFailed, match="could not store 5 records"):
            spool.wait_stored(lost[2])
        assert all(ticket.failure is not None for ticket in lost)
        with pytest.raises(SpoolFailed):  # now the disk is known to refuse: the caller hears it at once
            spool.append_many("orders", 0, [b"lost too"])
        disk.heal()
        assert spool.append_many("orders", 0, [b"after", b"and on"])[-1].is_stored
        found = [(r.position, r.sequence, r.value) for r in read_everything(spool)]
        assert found == [(0, 0, b"before"), (1, 1, b"after"), (2, 2, b"and on")]


@pytest.mark.parametrize(
    "give",
    [
        lambda spool: spool.append_many("orders", 0, [b"a", "text"]),
        lambda spool: spool.append_many("orders", 0, [b"a", None], [b"k", bytearray(b"k")]),
        lambda spool: spool.append_many("orders", 0, [b"a", b"b"], [b"k"]),
        lambda spool: spool.append_many("orders", 0, [b"a"], headers=[("a", "text")]),
        lambda spool: spool.append_many("orders", 0, [b"a"], timestamp_ms=1 << 63),
        lambda spool: spool.append_many("orders", -1, [b"a"]),
        lambda spool: spool.append_many("orders", [0, -1], [b"a", b"b"]),
        lambda spool: spool.append_many("orders", [0], [b"a", b"b"]),
    ],
)
def test_if_one_cannot_be_stored_none_is(tmp_path: Path, give: Callable[[Spool], object]) -> None:
    with open_spool(tmp_path, linger_s=3600) as spool:
        spool.append("orders", 0, b"before")
        with pytest.raises(UsageError):
            give(spool)
        after = spool.append("orders", 0, b"after")
        assert (after.position, after.sequence) == (1, 1)


def test_what_does_not_fit_is_refused_as_a_whole(tmp_path: Path) -> None:
    with open_spool(tmp_path, max_bytes=40_000) as spool:
        store(spool, b"before")
        with pytest.raises(SpoolFull, match="will never fit"):
            spool.append_many("orders", 0, [b"x" * 1000] * 50)
        assert spool.wait_stored(spool.append_many("orders", 0, [b"x" * 1000] * 10)[-1])
        assert (spool.stored, spool.next_sequence("orders", 0)) == (11, 11)
        assert sum(path.stat().st_size for path in segments(tmp_path)) <= 40_000
    with pytest.raises(SpoolClosed):
        spool.append_many("orders", 0, [b"x"])


def test_more_than_any_buffer_passes_at_once(tmp_path: Path) -> None:
    values = [b"%07d" % number * 100 for number in range(20_000)]
    with open_spool(tmp_path) as spool:
        spool.append("orders", 0, b"before")
        assert spool.wait_stored(spool.append_many("orders", 0, values)[-1])
    with open_spool(tmp_path) as spool:
        found = [record.value for record in read_everything(spool, max_records=5000)]
        assert found == [b"before", *values]


def test_a_ticket_keeps_no_record_in_memory_that_was_sent(tmp_path: Path) -> None:
    value = os.urandom(100)
    before = sys.getrefcount(value)
    with open_spool(tmp_path, linger_s=3600) as spool:
        ticket = spool.append_many("orders", 0, [value, value])[-1]
        spool.wait_stored(ticket)
        assert sys.getrefcount(value) > before
        spool.note_sent(2)
        assert sys.getrefcount(value) == before
        assert ticket.is_stored


def test_an_interrupt_in_the_middle_leaves_no_gap_in_any_partition() -> None:
    interrupts = itertools.chain([KeyboardInterrupt], itertools.repeat(None))

    class Interrupted(Stream):
        """The first time that its sequence is set, Ctrl-C comes."""

        def __setattr__(self, name: str, value: object) -> None:
            if name == "next_sequence" and hasattr(self, "declared_in") and next(interrupts):
                raise KeyboardInterrupt
            super().__setattr__(name, value)

    group, first = Group(0), Stream(0, b"8 bytes.", "t", 0)
    second = Interrupted(1, b"8 bytes.", "t", 1)
    rows = Rows((0, 1), (0, 0), (0, 0), (None, None), (b"a", b"b"), (b"", b""))
    with pytest.raises(KeyboardInterrupt):
        group.add(rows, {first: 1, second: 1})
    assert (group.end, first.next_sequence, second.next_sequence) == (0, 0, 0)
    group.add(rows, {first: 1, second: 1})
    assert (group.end, first.next_sequence, second.next_sequence) == (2, 1, 1)
