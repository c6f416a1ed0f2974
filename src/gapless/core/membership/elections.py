"""What becomes of one partition when replicas leave its in-sync set, and who leads it then. Pure functions.

A replica is *eligible* (KIP-966) if it left the set when that fell below its floor: the high watermark does
not move down there, so it holds all that was committed. As soon as the set reaches its floor again nobody is
eligible any more. An election takes, in this order and always in the order of the replicas: somebody in
sync; somebody eligible; if there is neither, the last leader, though it may have lost records; and anybody,
if the topic allows it. The last two are *unclean*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from gapless.core.records import PartitionChanged

NOBODY = -1
IsLive = Callable[[int], bool]


class Policy(NamedTuple):
    """What a topic's settings say of elections."""

    min_insync: int = 1
    unclean: bool = False
    """Whether anybody may lead when nobody who holds all is there."""
    flushed: bool = False
    """Whether all that was ever committed survives a power cut."""


class Election(NamedTuple):
    """A partition after it was looked at; `unclean` if its new leader may lack committed records."""

    partition: PartitionChanged
    unclean: bool = False


def floor_of(partition: PartitionChanged, policy: Policy) -> int:
    """How many must be in sync for the high watermark to advance; never more than there are replicas."""
    return min(policy.min_insync, len(partition.replicas))


def with_isr(
    partition: PartitionChanged, isr: Iterable[int], policy: Policy, lost: Iterable[int] = ()
) -> PartitionChanged:
    """The partition with another in-sync set, and who is eligible then. `lost` may lack what they held.

    The epochs stay: `sealed` counts them when all is decided.
    """
    isr, lost = tuple(isr), tuple(lost)
    if isr == partition.isr and not partition.eligible:
        return partition
    if len(isr) >= floor_of(partition, policy):
        return replace(partition, isr=isr, eligible=())
    held = (*partition.isr, *partition.eligible)
    eligible = tuple(
        node_id
        for node_id in partition.replicas
        if node_id in held and node_id not in isr and node_id not in lost
    )
    return replace(partition, isr=isr, eligible=eligible)


def elected(partition: PartitionChanged, is_live: IsLive, policy: Policy) -> Election:
    """Keep the leader if it is live and in sync, else find another; nobody leads if nobody can."""
    if partition.leader in partition.isr and is_live(partition.leader):
        return Election(partition)
    for node_id in partition.replicas:
        if node_id in partition.isr and is_live(node_id):
            return Election(replace(partition, leader=node_id, last_leader=NOBODY))
    for node_id in partition.replicas:
        if node_id in partition.eligible and is_live(node_id):
            alone = with_isr(partition, (node_id,), policy)
            return Election(replace(alone, leader=node_id, last_leader=NOBODY))
    last = partition.last_leader if partition.leader == NOBODY else partition.leader
    nobody_holds_all = not partition.isr and not partition.eligible
    if nobody_holds_all and last in partition.replicas and is_live(last):
        return _unclean(partition, last)
    if policy.unclean:
        for node_id in partition.replicas:
            if is_live(node_id):
                return _unclean(partition, node_id)
    return Election(replace(partition, leader=NOBODY, last_leader=last))


def elected_uncleanly(partition: PartitionChanged, is_live: IsLive, policy: Policy) -> Election:
    """As `elected`, and if nobody can lead, let anybody: somebody has asked for it."""
    return elected(partition, is_live, policy._replace(unclean=True))


def _unclean(partition: PartitionChanged, leader: int) -> Election:
    # Whoever was eligible knows a history that is no longer the partition's.
    alone = replace(partition, leader=leader, isr=(leader,), eligible=(), last_leader=NOBODY)
    return Election(alone, unclean=True)


def sealed(
    before: PartitionChanged, after: PartitionChanged, *, renewed: bool = False
) -> PartitionChanged | None:
    """The record that leads from one to the other, None if none is needed. `renewed`: led anew."""
    if after == before and not renewed:
        return None
    led_anew = renewed or after.leader != before.leader
    return replace(
        after, leader_epoch=before.leader_epoch + led_anew, partition_epoch=before.partition_epoch + 1
    )
