"""Whether an append and a random read cost the same on a small and on a huge log, on the storage itself.

One log grows from size to size and is measured at each. Times are noisy and shown beside; what counts are the
counters: reads of the log and of indexes, writes, and their bytes, per operation.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from benchmarks.meters import process_writes
from benchmarks.progress import Progress
from benchmarks.sizes import Sizes
from benchmarks.statistics import Summary
from gapless.core.log import LogConfig
from gapless.storage.file_log import FileLog
from gapless.storage.file_store import FileLogStore
from gapless.wire.batch import HEADER_SIZE, parse_header
from gapless.wire.records import build_batch

BATCH_BYTES = 16 * 1024
READ_BYTES = 64 * 1024
_RECORD_OVERHEAD_BYTES = 12
_LONGEST_STRETCH = 1.1
_SLACK = 0.02
_SLACK_BYTES = 32
"""A counter is flat if it is at most a tenth larger on the largest log than on the smallest.

The slack is for what else this process writes meanwhile: its progress.
"""


@dataclass(frozen=True, slots=True)
class LogSizeRow:
    """One operation at one size; counters are averages per operation."""

    size_mb: int
    operation: str
    time_us: Summary
    counters: dict[str, float]


class _GrowingLog:
    """A log that is filled with batches of one 16 KB record each, a millisecond apart."""

    def __init__(self, log: FileLog) -> None:
        self.log = log
        self._value = random.Random(1).randbytes(BATCH_BYTES - HEADER_SIZE - _RECORD_OVERHEAD_BYTES)
        self._timestamp_ms = time.time_ns() // 1_000_000

    def append(self) -> int:
        """Append one batch; how long the log took for it, in nanoseconds."""
        log = self.log
        self._timestamp_ms += 1
        record = (self._timestamp_ms, None, self._value)
        payload = memoryview(build_batch([record], base_offset=log.end_offset, leader_epoch=0))
        batches = [parse_header(payload, 0)]
        begin = time.perf_counter_ns()
        log.roll_if_needed(len(payload), self._timestamp_ms)
        log.append(batches, payload)
        return time.perf_counter_ns() - begin

    def read(self, offset: int) -> int:
        """Find an offset and read the batches there as a fetch does; how long that took, in nanoseconds."""
        log = self.log
        begin = time.perf_counter_ns()
        found = log.read(offset, READ_BYTES, log.end_offset, at_least_one=True)
        data = found.read(0, found.size)
        took_ns = time.perf_counter_ns() - begin
        batch = parse_header(data, 0)
        if not batch.base_offset <= offset <= batch.last_offset:
            raise RuntimeError(f"the log gave offset {batch.base_offset} for {offset}")
        return took_ns


def measure(sizes: Sizes, rounds: int, progress: Progress) -> list[LogSizeRow]:
    """All sizes, ascending, in a folder that is gone afterwards."""
    rows: list[LogSizeRow] = []
    with _new_log() as log:
        growing = _GrowingLog(log)
        far_jumps = _far_jumps(log)
        for size_mb in sizes.log_mb:
            progress.begin(f"log size · fill to {size_mb:,} MB")
            began_s = time.monotonic()
            while log.size_bytes < size_mb * 1_000_000:
                growing.append()
            progress.done(time.monotonic() - began_s, "")
            for operation, run in (
                ("append 16 KB", growing.append),
                ("read 64 KB at a random offset", lambda: growing.read(next(far_jumps))),
            ):
                progress.begin(f"log size · {operation} at {size_mb:,} MB")
                began_s = time.monotonic()
                row = _measure_operation(log, size_mb, operation, run, sizes.log_operations, rounds)
                progress.done(time.monotonic() - began_s, f"{row.time_us.median:.1f} µs")
                rows.append(row)
    return rows


def _far_jumps(log: FileLog) -> Iterator[int]:
    """Random offsets, in turn from the first and from the third quarter of the log as it is.

    So no read finds its batch remembered, or the block of the index that the read before has left in memory.
    On a small log that would often happen by chance, and make it look cheaper than it is.
    """
    choose = random.Random(7).randrange
    while True:
        quarter = log.end_offset // 4
        yield choose(quarter)
        yield 2 * quarter + choose(quarter)


def _measure_operation(
    log: FileLog, size_mb: int, operation: str, run: Callable[[], int], operations: int, rounds: int
) -> LogSizeRow:
    # Some unmeasured ones first: they load what is loaded once per segment.
    for _ in range(operations):
        run()
    before, written_before = log.probes.snapshot(), process_writes()
    times_us = [sum(run() for _ in range(operations)) / operations / 1000 for _ in range(rounds)]
    counted = log.probes.since(before)
    for name, count in process_writes().items():
        counted[name] = count - written_before[name]
    counters = {name: count / (operations * rounds) for name, count in counted.items()}
    return LogSizeRow(size_mb, operation, Summary.of(times_us), counters)


def grown_counters(rows: Sequence[LogSizeRow]) -> list[str]:
    """The counters that are not flat, by operation; empty if cost does not grow with size."""
    grown = []
    for operation in dict.fromkeys(row.operation for row in rows):
        first, *_, last = [row for row in rows if row.operation == operation]
        grown += [
            f"{operation}: {name}"
            for name, value in last.counters.items()
            if value > first.counters[name] * _LONGEST_STRETCH + (_SLACK_BYTES if "bytes" in name else _SLACK)
        ]
    return grown


@contextmanager
def _new_log() -> Iterator[FileLog]:
    folder = Path(tempfile.mkdtemp(prefix="gapless-log-size-"))
    try:
        store = FileLogStore(folder)
        log = store.open("growing", uuid4(), 0, LogConfig())
        try:
            yield log
        finally:
            log.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
