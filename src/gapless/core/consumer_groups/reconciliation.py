"""How a member gets from what it has to what it is to have: it gives up first, and takes what others gave up.

So no partition ever has two owners: what a member is asked to give up stays its own until it says that it
did, and what it is to take waits until the former owner has said so.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from gapless.core.consumer_groups.group import MemberState
from gapless.wire.consumer_group_records import Assigned, CurrentAssignment

Owned = Callable[[UUID, int], bool]
"""Whether somebody else has a partition."""


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Assigned,
    told: Assigned | None,
    is_owned: Owned,
) -> CurrentAssignment:
    """A member's next step; `told` is what it says it has, None if it says nothing about it."""
    if current.state == MemberState.UNREVOKED_PARTITIONS:
        if _has_some_of(told, current.revoking):
            return current
        return _next(current, current.epoch + 1, target_epoch, target, told, is_owned)
    if current.state == MemberState.STABLE and current.epoch == target_epoch:
        return current
    return _next(current, current.epoch, target_epoch, target, told, is_owned)


def _has_some_of(told: Assigned | None, revoking: Assigned) -> bool:
    if told is None:
        return True
    return any(
        not set(partitions).isdisjoint(revoking.get(topic_id, ())) for topic_id, partitions in told.items()
    )


def _next(
    current: CurrentAssignment,
    epoch: int,
    target_epoch: int,
    target: Assigned,
    told: Assigned | None,
    is_owned: Owned,
) -> CurrentAssignment:
    kept: Assigned = {}
    revoking: Assigned = {}
    for topic_id, partitions in current.assigned.items():
        wanted = set(target.get(topic_id, ()))
        _put(kept, topic_id, [partition for partition in partitions if partition in wanted])
        _put(revoking, topic_id, [partition for partition in partitions if partition not in wanted])
    if revoking and _has_some_of(told, revoking):
        return CurrentAssignment(epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    assigned, waits = _take(kept, target, is_owned)
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return CurrentAssignment(target_epoch, current.epoch, state, assigned, {})


def _take(kept: Assigned, target: Assigned, is_owned: Owned) -> tuple[Assigned, bool]:
    """All of the target that is free or ours already, and whether there is more of it."""
    assigned: Assigned = {}
    waits = False
    for topic_id, partitions in target.items():
        ours = set(kept.get(topic_id, ()))
        free = [each for each in partitions if each in ours or not is_owned(topic_id, each)]
        waits |= len(free) < len(partitions)
        _put(assigned, topic_id, free)
    return assigned, waits


def _put(assigned: Assigned, topic_id: UUID, partitions: list[int]) -> None:
    if partitions:
        assigned[topic_id] = partitions
