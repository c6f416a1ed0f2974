"""The offsets that groups have committed, and those that transactions will commit when they end.

Changed by replaying records only. An offset inside a transaction is pending: it becomes visible with the
transaction's commit marker, unless a later commit has overtaken it, and vanishes with an abort.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gapless.core.groups.held import OFFSET_BYTES, Held
from gapless.wire.group_records import OffsetKey, OffsetValue


class Commit(NamedTuple):
    """A committed offset, and where in the log the record of it is."""

    value: OffsetValue
    log_offset: int


Topics = dict[str, dict[int, Commit]]


class Offsets:
    """All offsets of one shard's groups."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._by_group: dict[str, Topics] = {}
        self._pending: dict[int, dict[OffsetKey, Commit]] = {}
        self._open_producers: dict[str, dict[int, None]] = {}
        self._groups_of_producer: dict[int, dict[str, None]] = {}

    # -------------------------------------------------------------------------------------------- reading

    def of_group(self, group_id: str) -> Topics:
        """A group's committed offsets by topic and partition; not to be changed."""
        return self._by_group.get(group_id, {})

    def get(self, key: OffsetKey) -> Commit | None:
        topics = self._by_group.get(key.group)
        partitions = topics.get(key.topic) if topics is not None else None
        return partitions.get(key.partition) if partitions is not None else None

    def is_pending(self, key: OffsetKey) -> bool:
        """Whether an open transaction is going to commit this offset, if it commits."""
        return any(key in self._pending[producer] for producer in self._open_producers.get(key.group, ()))

    def in_transaction(self, group_id: str) -> bool:
        """Whether an open transaction holds offsets of this group."""
        return group_id in self._open_producers

    def keys(self, group_id: str) -> list[OffsetKey]:
        """Everything that a group has committed or is going to."""
        found = {
            OffsetKey(group_id, topic, partition): None
            for topic, partitions in self.of_group(group_id).items()
            for partition in partitions
        }
        for producer in self._open_producers.get(group_id, ()):
            found.update((key, None) for key in self._pending[producer] if key.group == group_id)
        return list(found)

    def keys_of_topics(self, is_gone: dict[str, None]) -> list[OffsetKey]:
        """Everything committed or pending in these topics, whatever the group."""
        return [key for key in self._all_keys() if key.topic in is_gone]

    def topics(self) -> dict[str, None]:
        """All topics of which something is kept."""
        return {key.topic: None for key in self._all_keys()}

    def _all_keys(self) -> Iterator[OffsetKey]:
        for group_id, topics in self._by_group.items():
            for topic, partitions in topics.items():
                for partition in partitions:
                    yield OffsetKey(group_id, topic, partition)
        for pending in self._pending.values():
            yield from pending

    # ------------------------------------------------------------------------------------------ replaying

    def put(self, key: OffsetKey, commit: Commit) -> None:
        partitions = self._by_group.setdefault(key.group, {}).setdefault(key.topic, {})
        self._held.grow(_size(commit) - _size(partitions.get(key.partition)))
        partitions[key.partition] = commit

    def put_pending(self, producer_id: int, key: OffsetKey, commit: Commit) -> None:
        """An offset that is part of a transaction."""
        pending = self._pending.setdefault(producer_id, {})
        self._held.grow(_size(commit) - _size(pending.get(key)))
        pending[key] = commit
        self._open_producers.setdefault(key.group, {})[producer_id] = None
        self._groups_of_producer.setdefault(producer_id, {})[key.group] = None

    def remove(self, key: OffsetKey) -> None:
        """Forget an offset, also one that is pending."""
        topics = self._by_group.get(key.group, {})
        partitions = topics.get(key.topic, {})
        self._held.grow(-_size(partitions.pop(key.partition, None)))
        if topics and not partitions:
            topics.pop(key.topic, None)
            if not topics:
                del self._by_group[key.group]
        for producer in self._open_producers.get(key.group, ()):
            self._held.grow(-_size(self._pending[producer].pop(key, None)))

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """A transaction's marker: its offsets become visible, or never were."""
        for key, commit in self._pending.pop(producer_id, {}).items():
            earlier = self.get(key)
            if committed and (earlier is None or earlier.log_offset < commit.log_offset):
                self.put(key, commit)
            self._held.grow(-_size(commit))
        for group_id in self._groups_of_producer.pop(producer_id, {}):
            producers = self._open_producers[group_id]
            del producers[producer_id]
            if not producers:
                del self._open_producers[group_id]


def _size(commit: Commit | None) -> int:
    return 0 if commit is None else OFFSET_BYTES + len(commit.value.metadata)
