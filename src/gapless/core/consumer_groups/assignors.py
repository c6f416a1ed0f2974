"""Who is to have which partitions: `uniform` and `range`, Kafka's assignors on the broker's side.

Both are functions of the members' topics, the topics' sizes and the previous target; neither depends on the
order in which members came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple
from uuid import UUID

from gapless.wire.consumer_group_records import Assigned

BALANCING_ROUNDS = 16
"""Members with different topics may need several rounds until nothing is left to even out."""


class Spec(NamedTuple):
    """What an assignor has to know. Members come with the ids of the topics that they want."""

    members: Mapping[str, tuple[UUID, ...]]
    instance_ids: Mapping[str, str | None]
    partitions: Mapping[UUID, int]
    previous: Mapping[str, Assigned]


Assignor = Callable[[Spec], dict[str, Assigned]]


# ------------------------------------------------------------------------------------------------- range


def assign_ranges(spec: Spec) -> dict[str, Assigned]:
    """Each topic is cut into as many ranges as it has members: topics of one size are cut alike."""
    targets: dict[str, Assigned] = {member: {} for member in spec.members}
    for topic_id, members in _members_by_topic(spec, _static_first(spec)).items():
        size, extra = divmod(spec.partitions[topic_id], len(members))
        start = 0
        for index, member in enumerate(members):
            end = start + size + (index < extra)
            if start < end:
                targets[member][topic_id] = list(range(start, end))
            start = end
    return targets


def _static_first(spec: Spec) -> list[str]:
    def place(member: str) -> tuple[bool, str]:
        instance_id = spec.instance_ids.get(member)
        return instance_id is None, member if instance_id is None else instance_id

    return sorted(spec.members, key=place)


def _members_by_topic(spec: Spec, members: Iterable[str]) -> dict[UUID, list[str]]:
    found: dict[UUID, list[str]] = {}
    for member in members:
        for topic_id in spec.members[member]:
            found.setdefault(topic_id, []).append(member)
    return found


# ----------------------------------------------------------------------------------------------- uniform


def assign_uniformly(spec: Spec) -> dict[str, Assigned]:
    """All have as many partitions as their topics allow, to within one, and keep what they can."""
    return _Uniform(spec).assign()


class _Uniform:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._subscribers = _members_by_topic(spec, sorted(spec.members))
        self._load = dict.fromkeys(sorted(spec.members), 0)
        self._owners: dict[UUID, dict[int, str]] = {topic_id: {} for topic_id in self._subscribers}

    def assign(self) -> dict[str, Assigned]:
        self._keep()
        # Topics that few want first: whoever wants more can then make up for it with the others.
        topics = sorted(self._subscribers, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id))
        for topic_id in topics:
            self._give_out(topic_id)
        for _ in range(BALANCING_ROUNDS):
            if not sum(self._even_out(topic_id) for topic_id in topics):
                break
        targets: dict[str, Assigned] = {member: {} for member in self._spec.members}
        for topic_id in topics:
            for partition, member in sorted(self._owners[topic_id].items()):
                targets[member].setdefault(topic_id, []).append(partition)
        return targets

    def _keep(self) -> None:
        """Begin with what members have, as long as they want it and it is there."""
        for member in self._load:
            wanted = set(self._spec.members[member])
            for topic_id, partitions in self._spec.previous.get(member, {}).items():
                if topic_id not in wanted:
                    continue
                owners = self._owners[topic_id]
                for partition in partitions:
                    if partition < self._spec.partitions[topic_id] and partition not in owners:
                        owners[partition] = member
                        self._load[member] += 1

    def _give_out(self, topic_id: UUID) -> None:
        """What nobody has goes to those who have least."""
        owners = self._owners[topic_id]
        free = [each for each in range(self._spec.partitions[topic_id]) if each not in owners]
        if not free:
            return
        heap = [(self._load[member], member) for member in self._subscribers[topic_id]]
        heapify(heap)
        for partition in free:
            load, member = heappop(heap)
            owners[partition] = member
            self._load[member] = load + 1
            heappush(heap, (load + 1, member))

    def _even_out(self, topic_id: UUID) -> int:
        """Move partitions of a topic from those who have most to those who have least; how many."""
        subscribers = self._subscribers[topic_id]
        loads = [self._load[member] for member in subscribers]
        if max(loads) - min(loads) <= 1:
            return 0
        has: dict[str, list[int]] = {member: [] for member in subscribers}
        for partition, member in sorted(self._owners[topic_id].items()):
            has[member].append(partition)
        rich = [(-self._load[member], member) for member in subscribers if has[member]]
        poor = [(self._load[member], member) for member in subscribers]
        heapify(rich)
        heapify(poor)
        return self._move(topic_id, has, rich, poor)

    def _move(
        self,
        topic_id: UUID,
        has: dict[str, list[int]],
        rich: list[tuple[int, str]],
        poor: list[tuple[int, str]],
    ) -> int:
        moved = 0
        while rich:
            giver, taker = rich[0][1], poor[0][1]
            if -rich[0][0] != self._load[giver] or not has[giver]:  # what the heap says is outdated
                heappop(rich)
                if has[giver]:
                    heappush(rich, (-self._load[giver], giver))
                continue
            if poor[0][0] != self._load[taker]:
                heappop(poor)
                heappush(poor, (self._load[taker], taker))
                continue
            if self._load[giver] - self._load[taker] <= 1:
                break
            partition = has[giver].pop()
            self._owners[topic_id][partition] = taker
            self._load[giver] -= 1
            self._load[taker] += 1
            moved += 1
        return moved


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
DEFAULT_ASSIGNOR = "uniform"
