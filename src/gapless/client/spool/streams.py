"""The streams that an open spool appends to, and the next sequence of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gapless.client.formats import INCARNATION_BYTES
from gapless.client.spool.blocks import Stream
from gapless.errors import UsageError

StreamKey = tuple[bytes, str, int]
"""(incarnation, topic, partition): what a sequence counts in."""


class Streams:
    """The spool's own, which it gives sequences to, and those of records that came with one."""

    def __init__(self, incarnation: bytes) -> None:
        self.incarnation = incarnation
        self.own: dict[tuple[str, int], Stream] = {}
        self._foreign: dict[StreamKey, Stream] = {}
        self.by_id: dict[int, Stream] = {}
        """Those that something was or may be appended to."""
        self._next_id = 0
        self.declared_bytes = 0
        """What it takes to declare them all."""

    def recall(self, found: Iterable[Stream]) -> None:
        """Those that the last segment knows. Others' need not be known: who appends gives the sequence."""
        for stream in found:
            if stream.incarnation == self.incarnation:
                self.own[stream.topic, stream.partition] = self.by_id[stream.id] = stream
                self.declared_bytes += stream.declared_bytes
            self._next_id = max(self._next_id, stream.id + 1)

    def add_own(self, topic: str, partition: int) -> Stream:
        stream = self._new(self.incarnation, topic, partition)
        self.own[topic, partition] = stream
        return stream

    def next_of(
        self, topic: str, partitions: int | Sequence[int], count: int
    ) -> tuple[Sequence[int], Sequence[int], dict[Stream, int]]:
        """For records that come together: stream and sequence of each, and what follows in each stream."""
        if isinstance(partitions, int):
            stream = self.own[topic, partitions]
            end = stream.next_sequence + count
            return (stream.id,) * count, range(stream.next_sequence, end), {stream: end}
        streams = {partition: self.own[topic, partition] for partition in set(partitions)}
        following = {partition: stream.next_sequence for partition, stream in streams.items()}
        sequences = []
        for partition in partitions:
            sequence = following[partition]
            sequences.append(sequence)
            following[partition] = sequence + 1
        ids = [streams[partition].id for partition in partitions]
        return ids, sequences, {streams[partition]: end for partition, end in following.items()}

    def foreign(self, incarnation: bytes | None, topic: str, partition: int, sequence: int | None) -> Stream:
        """The stream of a record that has its sequence already."""
        if incarnation is None or sequence is None or not 0 <= sequence < 1 << 63:
            raise UsageError("a record of another incarnation needs both, its incarnation and its sequence")
        if incarnation == self.incarnation:
            raise UsageError("the spool itself gives sequences to the records of its incarnation")
        stream = self._foreign.get((incarnation, topic, partition))
        if stream is None:
            stream = self._new(incarnation, topic, partition)
            self._foreign[incarnation, topic, partition] = stream
        return stream

    def _new(self, incarnation: bytes, topic: str, partition: int) -> Stream:
        if len(incarnation) != INCARNATION_BYTES:
            raise UsageError(f"an incarnation has {INCARNATION_BYTES} bytes, not {len(incarnation)}")
        if not 0 < len(topic.encode()) < 1 << 16 or not 0 <= partition < 1 << 31:
            raise UsageError(f"topic {topic[:50]!r}, partition {partition}: no such partition can be")
        stream = self.by_id[self._next_id] = Stream(self._next_id, incarnation, topic, partition)
        self._next_id += 1
        self.declared_bytes += stream.declared_bytes
        return stream

    def all(self) -> list[Stream]:
        return list(self.by_id.values())

    def take_back(self) -> None:
        """Forget the sequences of what was not stored."""
        for stream in self.all():
            stream.next_sequence = stream.stored_sequence
