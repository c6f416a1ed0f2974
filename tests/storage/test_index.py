"""Indexes: what they cost, and that a wrong one is never believed."""

from __future__ import annotations

import logging
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gapless.core.log import LogConfig
from gapless.storage import FileLog, FileLogStore
from gapless.storage.segment import OpenSegments
from tests.storage.helpers import (
    SMALL,
    append_one,
    contents,
    crashed_copy,
    fill,
    flush,
    log_file,
    make_batch,
    offsets_of,
    open_log,
    parse_all,
    read_all,
)

DENSE = LogConfig(segment_bytes=1 << 30, index_interval_bytes=200)


def entries(path: Path, layout: str) -> list[tuple[int, int]]:
    return [(first, second) for first, second in struct.iter_unpack(layout, path.read_bytes())]


def open_files(store: FileLogStore) -> list[Path]:
    """Return the files of a store that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # The descriptor that lists the folder is closed by now.
            found.append(descriptor.readlink())
    return [each for each in found if each.is_relative_to(store.location)]


def check_everything(log: FileLog, count: int) -> None:
    """Every record is found by offset and by time."""
    for offset in range(count):
        assert offsets_of(contents(log.read(offset, 1, count, at_least_one=True))) == [offset]
        found = log.offset_at_time(1000 + offset, count)
        assert found is not None
        assert found.offset == offset


def test_an_index_has_an_entry_for_every_interval_and_names_the_last_offset_of_a_batch(
    store: FileLogStore,
) -> None:
    log = open_log(store, DENSE)
    sizes = [len(append_one(log, (1000 + i, 1000 + i), value=b"v" * 50)) for i in range(50)]
    store.close_cleanly()
    size = sizes[0]
    step = 200 // size + 1  # the first batch that lies more than an interval behind the last entry
    expected = [(2 * i + 1, i * size) for i in range(step, 50, step)]
    assert entries(log_file(store, suffix=".index"), ">ii") == expected
    times = entries(log_file(store, suffix=".timeindex"), ">qi")
    assert times[:-1] == [(1000 + i, 2 * i + 1) for i in range(step, 50, step)][: len(times) - 1]
    assert times[-1] == (1049, 99)  # a segment that is closed ends with its largest timestamp


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage", ["missing", "empty", "half", "not whole entries", "garbage", "zeros", "reversed", "shifted"]
)
@pytest.mark.parametrize("clean", [True, False])
def test_a_wrong_index_is_found_out_and_rebuilt_with_a_line_in_the_log(
    store: FileLogStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    suffix: str,
    damage: str,
    clean: bool,
) -> None:
    log = open_log(store)
    fill(log, 100)
    folder = Path(store.location)
    if clean:
        store.close_cleanly()
    else:
        flush(log)
        store.write_checkpoints()
        folder = crashed_copy(store, tmp_path / "crashed")
    for path in (folder / "orders-0").glob(f"*{suffix}"):
        spoil(path, damage)
    again = FileLogStore(folder)
    with caplog.at_level(logging.WARNING):
        log = open_log(again)
        assert log.end_offset == 100
        check_everything(log, 100)
        assert [info.max_timestamp_ms for info in log.segments()] == [
            999 + info.end_offset for info in log.segments()
        ]
        fill(log, 50, first_timestamp=1100)
        check_everything(log, 150)
    again.close()
    assert "rebuilding the indexes of" in caplog.text or (damage in {"half", "empty"} and not clean)


def spoil(path: Path, damage: str) -> None:
    data = path.read_bytes()
    width = 8 if path.suffix == ".index" else 12
    pieces = [data[i : i + width] for i in range(0, len(data), width)]
    if damage == "missing":
        path.unlink()
        return
    spoiled = {
        "empty": b"",
        "half": b"".join(pieces[: len(pieces) // 2]),
        "not whole entries": data + b"\x01\x02\x03",
        "garbage": bytes((7 * i + 13) % 256 for i in range(len(data) or width)),
        "zeros": bytes(len(data) or width),
        "reversed": b"".join(reversed(pieces)),
        "shifted": b"".join(bytes([*piece[:-1], piece[-1] ^ 1]) for piece in pieces),
    }
    path.write_bytes(spoiled[damage])


@pytest.mark.usefixtures("tiny_blocks")
def test_an_index_that_a_crash_left_short_is_completed(store: FileLogStore, tmp_path: Path) -> None:
    log = open_log(store, DENSE)
    fill(log, 100)
    crashes = []
    for number in range(12):  # The index is written three entries at a time.
        append_one(log, (1000 + log.end_offset,))
        crashes.append(crashed_copy(store, tmp_path / f"crashed-{number}"))
    was_short = []
    for crash in crashes:
        again = FileLogStore(crash)
        left = log_file(again, suffix=".index").stat().st_size
        crashed = open_log(again, DENSE)
        check_everything(crashed, crashed.end_offset)
        again.close_cleanly()
        was_short.append(left < log_file(again, suffix=".index").stat().st_size)
        if crash == crashes[-1]:
            store.close_cleanly()
            for suffix in (".index", ".timeindex"):
                repaired = log_file(again, suffix=suffix).read_bytes()
                assert repaired == log_file(store, suffix=suffix).read_bytes()
    assert any(was_short)


def test_looking_up_costs_the_same_at_every_size(store: FileLogStore) -> None:
    config = LogConfig(segment_bytes=1 << 30, index_interval_bytes=4096)
    costs = {}
    for partition, count in enumerate((2_000, 20_000, 100_000)):
        log = open_log(store, config, partition)
        batch = make_batch(0, value=b"v" * 2000)
        base = 0
        while base < count:  # 100 batches per append: only the lookups are of interest
            payload = bytearray()
            for offset in range(base, base + 100):
                batch[0:8] = offset.to_bytes(8, "big")
                payload += batch
            log.append(parse_all(payload), memoryview(payload))
            base += 100
        log.write_indexes()
        log.read(1, 1, count, at_least_one=True)  # the table of blocks is read once
        cost = set()
        for offset in range(count // 10, count - count // 10, count // 50):
            # The index caches the block that it read last: make that another one.
            log.read(100 if offset > count // 2 else count * 3 // 4, 1, count, at_least_one=True)
            before = log.probes.snapshot()
            log.read(offset, 1, count, at_least_one=True)
            after = log.probes.since(before)
            assert after["log_bytes"] <= 2 * (4096 + 61)
            cost.add((after["index_reads"], after["index_loads"]))
            assert after["log_reads"] <= 2
        costs[count] = cost
    assert all(cost == {(1, 0)} for cost in costs.values()), costs


def test_reading_at_the_tail_costs_no_read_at_all(store: FileLogStore) -> None:
    log = open_log(store, replace(SMALL, segment_bytes=1 << 30))
    fill(log, 500)
    before = log.probes.snapshot()
    for offset in range(470, 500):
        assert log.read(offset, 1 << 20, 500, at_least_one=True).size
        assert log.read(offset, 100, 500, at_least_one=True).size
        log.read(offset, 1 << 20, 499, at_least_one=True)
    assert not any(log.probes.since(before).values())


def test_finding_a_time_reads_one_interval_even_among_equal_times(store: FileLogStore) -> None:
    log = open_log(store, LogConfig(segment_bytes=1 << 30, index_interval_bytes=4096))
    for i in range(3000):
        append_one(log, (1000 if i < 2500 else 2000 + i,), value=b"v" * 500)
    log.offset_at_time(1500, 3000)
    before = log.probes.snapshot()
    found = log.offset_at_time(1500, 3000)
    assert found is not None
    assert found.offset == 2500
    assert log.probes.since(before)["log_bytes"] < 20_000


def test_batches_larger_than_the_interval_are_each_indexed(store: FileLogStore) -> None:
    log = open_log(store, LogConfig(segment_bytes=1 << 30, index_interval_bytes=4096))
    for i in range(5):
        append_one(log, (1000 + 2 * i, 1001 + 2 * i), value=b"x" * 300_000)
    store.close_cleanly()
    again = FileLogStore(store.location)
    log = open_log(again, LogConfig(segment_bytes=1 << 30, index_interval_bytes=4096))
    for offset in range(10):
        assert offsets_of(contents(log.read(offset, 1, 10, at_least_one=True))) == [offset // 2 * 2]
    assert read_all(log)[:8] == bytes(8)
    again.close()


def test_few_files_stay_open_however_many_segments_are_read(store: FileLogStore) -> None:
    store.cache = OpenSegments(5)
    log = open_log(store, replace(SMALL, segment_bytes=300))
    fill(log, 200)
    flush(log)
    for offset in range(200):
        log.read(offset, 1, 200, at_least_one=True)
    open_logs = [each for each in open_files(store) if each.suffix == ".log"]
    assert 1 <= len(open_logs) <= 6 < len(log.segments())
    assert read_all(log)
