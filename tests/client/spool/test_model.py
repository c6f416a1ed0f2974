"""B9: over any sequence of appends, rolls and power cuts at any byte, what was stored is there, and in order.

The disk is a real one that remembers what was synced. A power cut copies the folder in the middle of a
commit, between a write and its sync, and leaves of what was not synced any part, then what was there before,
zeros or garbage.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gapless.client.spool import Spool, Ticket
from gapless.client.spool.disk import Disk
from gapless.client.spool.inspect import status, verify

from .disks import read_everything, segments

Sent = tuple[str, int, bytes]
MEMORY = Path("/dev/shm")  # where syncs cost nothing


class ForgetfulDisk(Disk):
    """Knows what of each file is durable, and can take a picture just before a sync."""

    def __init__(self) -> None:
        self.durable: dict[int, bytes] = {}
        self.picture_before_sync = 0
        self.picture: Path | None = None
        self.folder = Path()

    def write(self, fd: int, pieces: Sequence[bytes], offset: int) -> None:
        self.durable.setdefault(os.fstat(fd).st_ino, content(fd))
        super().write(fd, pieces, offset)

    def sync(self, fd: int) -> None:
        self.picture_before_sync -= 1
        if self.picture_before_sync == 0:
            self.take_picture()
        super().sync(fd)
        self.durable[os.fstat(fd).st_ino] = content(fd)

    def take_picture(self) -> None:
        self.picture = Path(tempfile.mkdtemp(dir=self.folder.parent))
        for path in self.folder.iterdir():
            shutil.copy2(path, self.picture / path.name)

    def undurable(self) -> dict[str, bytes]:
        """Names of the files that are not what was synced, and what was."""
        found = {}
        for path in segments(self.folder):
            durable = self.durable.get(path.stat().st_ino)
            if durable is not None and durable != path.read_bytes():
                found[path.name] = durable
        return found


def content(fd: int) -> bytes:
    return Path(f"/proc/self/fd/{fd}").read_bytes()


class SpoolMachine(RuleBasedStateMachine):
    """`stored` is what was reported as stored, `pending` what was appended behind it."""

    prepare_bytes = 8000  # most groups are written over zeros

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(
            tempfile.mkdtemp(prefix="gapless-spool-model-", dir=MEMORY if MEMORY.is_dir() else None)
        )
        self.stored: list[Sent] = []
        self.pending: list[tuple[Sent, Ticket]] = []
        self.open(self.root / "first")

    def open(self, folder: Path) -> None:
        self.disk = ForgetfulDisk()
        self.disk.folder = folder
        self.spool = Spool(
            folder,
            "model",
            segment_bytes=700,
            prepare_bytes=self.prepare_bytes,
            linger_s=3600,
            keep_s=0,
            disk=self.disk,
        )

    def teardown(self) -> None:
        self.spool.close()
        shutil.rmtree(self.root)

    @rule(topic=st.sampled_from(["a", "b"]), partition=st.integers(0, 2), value=st.binary(max_size=200))
    def append(self, topic: str, partition: int, value: bytes) -> None:
        ticket = self.spool.append(topic, partition, value)
        sequence = sum(sent[:2] == (topic, partition) for sent in self.everything())
        assert (ticket.position, ticket.sequence) == (len(self.stored) + len(self.pending), sequence)
        self.pending.append(((topic, partition, value), ticket))

    @rule(
        records=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=60)), min_size=1, max_size=5),
        apart=st.booleans(),
    )
    def append_many(self, records: list[tuple[int, bytes]], apart: bool) -> None:
        partitions = [partition if apart else records[0][0] for partition, _ in records]
        values = [value for _, value in records]
        tickets = self.spool.append_many("a", partitions if apart else partitions[0], values)
        for ticket, partition, value in zip(tickets, partitions, values, strict=True):
            sequence = sum(sent[:2] == ("a", partition) for sent in self.everything())
            assert (ticket.position, ticket.sequence) == (len(self.everything()), sequence)
            self.pending.append((("a", partition, value), ticket))

    def everything(self) -> list[Sent]:
        return self.stored + [sent for sent, _ in self.pending]

    @precondition(lambda self: self.pending)
    @rule()
    def store(self) -> None:
        assert self.spool.wait_stored(self.pending[-1][1])
        self.stored = self.everything()
        self.pending = []

    @rule(part=st.floats(0, 1))
    def send(self, part: float) -> None:
        self.spool.note_sent(int(part * self.spool.stored))

    @rule()
    def restart(self) -> None:
        self.spool.close()
        self.stored, self.pending = self.everything(), []
        self.open(self.disk.folder)

    @precondition(lambda self: self.pending)
    @rule(sync=st.integers(1, 2), cut=st.floats(0, 1), rest=st.sampled_from(["", "zeros", "garbage"]))
    def cut_the_power(self, sync: int, cut: float, rest: str) -> None:
        durable: dict[str, bytes] = {}
        take = self.disk.take_picture

        def take_and_note() -> None:
            durable.update(self.disk.undurable())
            take()

        self.disk.take_picture = take_and_note  # type: ignore[method-assign]
        self.disk.picture_before_sync = sync
        self.spool.wait_stored(self.pending[-1][1])
        survived, lost = self.disk.picture, self.everything()
        self.spool.close()
        if survived is None:  # there was no second sync
            self.stored, self.pending = lost, []
            self.open(self.disk.folder)
            return
        for name, before in durable.items():
            lose(survived / name, before, cut, rest)
        self.open(survived)
        assert len(self.stored) <= self.spool.stored <= len(lost)
        self.stored, self.pending = lost[: self.spool.stored], []

    @invariant()
    def what_was_stored_is_there_in_order(self) -> None:
        assert self.spool.stored == len(self.stored)
        first = self.spool.first
        records = read_everything(self.spool, max_records=5)
        assert [(r.topic, r.partition, r.value) for r in records] == self.stored[first:]
        counts: dict[tuple[str, int], int] = {}
        for topic, partition, _ in self.stored[:first]:
            counts[topic, partition] = counts.get((topic, partition), 0) + 1
        for record in records:
            stream = (record.topic, record.partition)
            assert record.sequence == counts.get(stream, 0)
            counts[stream] = record.sequence + 1
        found = verify(self.spool.path)
        assert (found.problems, found.stored, found.records) == ([], len(self.stored), len(records))
        assert status(self.spool.path).stored == len(self.stored)


def lose(path: Path, durable: bytes, cut: float, rest: str) -> None:
    """Keep a part of what was written since the last sync; there, nothing else can have changed."""
    written = path.read_bytes()
    before = durable.ljust(len(written), b"\0")
    changed = [at for at, byte in enumerate(written) if byte != before[at]] or [len(written)]
    start, end = min(changed[0], len(durable)), max(changed[-1] + 1, len(durable))
    kept = start + int(cut * (end - start))
    if rest == "":
        path.write_bytes(written[:kept] + durable[kept:])
    elif rest == "zeros":
        path.write_bytes(written[:kept] + bytes(end - kept) + before[end:])
    else:
        path.write_bytes(written[:kept] + random.Random(kept).randbytes(end - kept) + before[end:])


class MachineWithoutZeros(SpoolMachine):
    """Every group makes the file longer."""

    prepare_bytes = 0


TestModel = SpoolMachine.TestCase
TestWithoutZeros = MachineWithoutZeros.TestCase
TestModel.settings = TestWithoutZeros.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
