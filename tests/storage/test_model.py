"""Random lives of a log: the one on files, its twin in memory and a plain list must always agree."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gapless.core.log import Log, LogConfig, ProducerEntry, TimedOffset
from gapless.storage import FileLog, FileLogStore, MemoryLogStore, index, segment
from gapless.storage.disk import Disk
from tests.storage.helpers import TOPIC, TOPIC_ID, append, contents, flush, make_batch, parse_all

TIMES = st.lists(st.integers(-1, 60), min_size=1, max_size=4)
NO_SYNC = Disk(fdatasync=lambda fd: None, fsync=lambda fd: None)  # nothing here cuts the power
FRACTION = st.floats(0, 1)


class Batch(NamedTuple):
    """What the list knows of a batch."""

    base: int
    times: tuple[int, ...]
    epoch: int
    data: bytes

    @property
    def next(self) -> int:
        return self.base + len(self.times)


class LogLife(RuleBasedStateMachine):
    """Appends, reads, cuts, restarts and crashes in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            patch.object(segment, "GROUP", 2),
            patch.object(segment, "_RECENT", 4),
            patch.object(segment, "_LONG_WALK_BYTES", 1200),  # more than any interval used here
            patch.object(index, "BLOCK_BYTES", 24),
        ]
        for each in self.patches:
            each.start()
        self.root = Path(tempfile.mkdtemp(prefix="gapless-model-"))
        self.generation = 0
        self.files = FileLogStore(self.root / "0", NO_SYNC)
        self.memory = MemoryLogStore()
        self.batches: list[Batch] = []
        self.start = self.end = 0
        self.epoch = 0

    @initialize(
        segment_bytes=st.integers(150, 900), interval=st.sampled_from([0, 100, 300]), age=st.integers(20, 100)
    )
    def begin(self, segment_bytes: int, interval: int, age: int) -> None:
        self.config = LogConfig(segment_bytes, age, interval, 0)
        self.open()

    def open(self) -> None:
        self.file_log: FileLog = self.files.open(TOPIC, TOPIC_ID, 0, self.config)
        self.memory_log = self.memory.open(TOPIC, TOPIC_ID, 0, self.config)
        self.logs: tuple[Log, Log] = (self.file_log, self.memory_log)

    def teardown(self) -> None:
        self.files.close()
        shutil.rmtree(self.root)
        for each in self.patches:
            each.stop()

    def offset(self, fraction: float, beyond: int = 0) -> int:
        return self.start + round(fraction * (self.end + beyond - self.start))

    # --------------------------------------------------------------------------------------- changes

    @rule(
        times=st.lists(TIMES, min_size=1, max_size=4),
        new_epoch=st.booleans(),
        size=st.sampled_from([1, 40, 200]),
    )
    def append(self, times: list[list[int]], new_epoch: bool, size: int) -> None:
        self.epoch += new_epoch
        made = []
        for stamps in times:
            data = make_batch(self.end, stamps, value=b"v" * size, epoch=self.epoch)
            made.append(bytes(data))
            self.batches.append(Batch(self.end, tuple(stamps), self.epoch, bytes(data)))
            self.end += len(stamps)
        assert append(self.file_log, *made) == append(self.memory_log, *made)

    @rule(fraction=FRACTION)
    def truncate(self, fraction: float) -> None:
        offset = self.offset(fraction, beyond=2)
        for log in self.logs:
            log.truncate_to(offset)
        if offset >= self.end:
            return
        kept = [batch for batch in self.batches if batch.next <= offset]
        end = kept[-1].next if kept else self.batches[0].base
        if offset <= self.start or end <= self.start:
            self.batches, self.start = [], min(offset, self.start)
            self.end = self.start
        else:
            self.batches, self.end = kept, end

    @rule(fraction=FRACTION, beyond=st.sampled_from([0, 0, 0, 5]))
    def advance_start(self, fraction: float, beyond: int) -> None:
        offset = self.offset(fraction, beyond)
        rolled = [log.advance_start(offset) for log in self.logs]
        assert rolled[0] == rolled[1]
        self.start = max(self.start, offset)
        self.end = max(self.end, offset)
        self.batches = [batch for batch in self.batches if batch.next > self.start]

    @rule(below=st.integers(0, 3))
    def truncate_below_the_start(self, below: int) -> None:
        offset = max(0, self.start - below)
        if offset < self.end:
            for log in self.logs:
                log.truncate_to(offset)
            self.start = self.end = offset
            self.batches = []

    @rule()
    def save_producers(self) -> None:
        entries = [ProducerEntry(self.end, 0, 5, self.end - 1, 0, 1)]
        for log in self.logs:
            log.save_producers(entries)

    @rule(closed_only=st.booleans())
    def flush(self, closed_only: bool) -> None:
        flush(self.file_log, closed_only=closed_only)

    @rule()
    def checkpoint(self) -> None:
        self.files.write_checkpoints()

    @rule(interval=st.sampled_from([0, 50, 500]))
    def configure(self, interval: int) -> None:
        self.config = LogConfig(self.config.segment_bytes, self.config.segment_ms, interval, 0)
        for log in self.logs:
            log.configure(self.config)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.files.close_cleanly()
        else:
            self.files.write_checkpoints()  # where the log starts is known as of the last checkpoint only
            self.files.close()
        self.memory.close()
        self.files = FileLogStore(self.files.location, NO_SYNC)
        self.open()
        assert self.file_log.recovery.truncated_bytes == 0
        assert not clean or self.file_log.recovery.scanned_bytes == 0

    @rule()
    def crash(self) -> None:
        self.files.write_checkpoints()
        self.generation += 1
        target = self.root / str(self.generation)
        shutil.copytree(self.files.location, target)
        self.files.close()
        self.memory.close()
        self.files = FileLogStore(target, NO_SYNC)
        self.open()
        assert self.file_log.recovery.truncated_bytes == 0

    @rule()
    def delete_what_is_due(self) -> None:
        while job := self.files.prepare_deletions():
            job.run()

    # --------------------------------------------------------------------------------------- promises

    @rule(
        fraction=FRACTION,
        width=st.integers(0, 20),
        max_bytes=st.integers(0, 1500),
        at_least_one=st.booleans(),
    )
    def read(self, fraction: float, width: int, max_bytes: int, at_least_one: bool) -> None:
        offset = self.offset(fraction)
        before = offset + width
        from_file, from_memory = (
            contents(log.read(offset, max_bytes, before, at_least_one)) for log in self.logs
        )
        assert from_file == from_memory
        there = [batch for batch in self.batches if batch.next > offset and batch.next <= before]
        got = parse_all(from_file)
        assert from_file == b"".join(batch.data for batch in there[: len(got)])
        assert len(from_file) <= max_bytes or (at_least_one and len(got) == 1)
        if len(got) < len(there):
            following = there[len(got)]
            begins_segment = following.base in {info.base_offset for info in self.file_log.segments()}
            too_much = len(from_file) + len(following.data) > max_bytes
            assert (begins_segment and got) or (too_much and (got or not at_least_one))

    @rule(wanted=st.integers(-1, 65), fraction=FRACTION)
    def find_time(self, wanted: int, fraction: float) -> None:
        before = self.offset(fraction, beyond=1)
        expected = next((each for each in self.records(before) if each.timestamp_ms >= wanted), None)
        for log in self.logs:
            assert log.offset_at_time(wanted, before) == expected

    @rule(fraction=FRACTION)
    def find_latest(self, fraction: float) -> None:
        before = self.offset(fraction, beyond=1)
        stamped = [each for each in self.records(before) if each.timestamp_ms >= 0]
        expected = max(stamped, key=lambda each: (each.timestamp_ms, -each.offset)) if stamped else None
        for log in self.logs:
            assert log.latest_timestamp(before) == expected

    def records(self, before: int) -> list[TimedOffset]:
        return [
            TimedOffset(time, batch.base + i, batch.epoch)
            for batch in self.batches
            for i, time in enumerate(batch.times)
            if self.start <= batch.base + i < before
        ]

    @rule(epoch=st.integers(-1, 8))
    def find_epoch(self, epoch: int) -> None:
        assert self.file_log.end_of_epoch(epoch) == self.memory_log.end_of_epoch(epoch)

    @rule(fraction=FRACTION)
    def list_headers(self, fraction: float) -> None:
        offset = self.offset(fraction, beyond=1)
        expected = [batch.base for batch in self.batches if batch.next > offset]
        for log in self.logs:
            assert [header.base_offset for header in log.batches_from(offset)] == expected

    @invariant()
    def twins_agree(self) -> None:
        if not hasattr(self, "logs"):
            return
        file, memory = self.logs
        assert (file.start_offset, file.end_offset) == (self.start, self.end)
        assert (memory.start_offset, memory.end_offset) == (self.start, self.end)
        assert file.size_bytes == memory.size_bytes
        assert file.latest_epoch == memory.latest_epoch
        assert list(file.segments()) == list(memory.segments())
        assert file.load_producers() == memory.load_producers()
        assert file.flushed_offset <= self.end


def lives(examples: int, steps: int) -> Any:
    """A test case that tries so many of them."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    return type("Lives", (LogLife.TestCase,), {"settings": chosen})


TestLogLife = lives(80, 40)
TestLongLogLife = pytest.mark.soak(lives(1000, 80))
