"""Moving partitions to other brokers: begin, finish, cancel. Pure functions.

While a partition moves, its replicas are those of the target, then those that will go. Once every replica of
the target is in sync the rest leaves in one step; no record depends on a replica that is still catching up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gapless.core.image import Image
from gapless.core.membership.decisions import Outcome, Policies
from gapless.core.membership.elections import NOBODY, IsLive, Policy, elected, sealed, with_isr
from gapless.core.records import PartitionChanged


def target_of(partition: PartitionChanged) -> tuple[int, ...]:
    """The replicas that a partition will have in the end."""
    return tuple(node_id for node_id in partition.replicas if node_id not in partition.removing)


def is_moving(partition: PartitionChanged) -> bool:
    """Whether a reassignment is under way."""
    return bool(partition.adding or partition.removing)


def is_finished(partition: PartitionChanged) -> bool:
    """Whether a partition that moves has arrived."""
    return is_moving(partition) and all(node_id in partition.isr for node_id in target_of(partition))


def begin(
    partition: PartitionChanged, target: Sequence[int], is_live: IsLive, policy: Policy
) -> PartitionChanged | None:
    """Move a partition to `target`; finished at once if all of it is in sync. None if nothing changes."""
    start = _without_abandoned(partition, target, is_live, policy)
    removing = tuple(node_id for node_id in start.replicas if node_id not in target)
    adding = tuple(
        node_id for node_id in target if node_id not in start.replicas or node_id in partition.adding
    )
    moving = replace(start, replicas=(*target, *removing), adding=adding, removing=removing)
    if not is_moving(moving):
        return sealed(partition, moving)  # at most the order is another
    if is_finished(moving):
        return sealed(partition, _arrived(moving, target, is_live, policy))
    return sealed(partition, moving)


def _without_abandoned(
    partition: PartitionChanged, target: Sequence[int], is_live: IsLive, policy: Policy
) -> PartitionChanged:
    """The partition without what an earlier reassignment was adding and nobody wants any more."""
    kept = [n for n in partition.replicas if n in target or n not in partition.adding]
    if len(kept) == len(partition.replicas):
        return partition
    start = _arrived(partition, kept, is_live, policy)
    return partition if start.leader == NOBODY else start


def finish(partition: PartitionChanged, is_live: IsLive, policy: Policy) -> PartitionChanged | None:
    """Let go the replicas that are no longer wanted, if the target is in sync."""
    if not is_finished(partition):
        return None
    return sealed(partition, _arrived(partition, target_of(partition), is_live, policy))


def cancel(partition: PartitionChanged, is_live: IsLive, policy: Policy) -> PartitionChanged | None:
    """Go back to the replicas from before; None if nobody of them could lead."""
    origin = tuple(node_id for node_id in partition.replicas if node_id not in partition.adding)
    back = _arrived(partition, origin, is_live, policy)
    if back.leader == NOBODY and partition.leader != NOBODY:
        return None
    return sealed(partition, back)


def _arrived(
    partition: PartitionChanged, replicas: Sequence[int], is_live: IsLive, policy: Policy
) -> PartitionChanged:
    """The partition with these replicas only, led by one of them."""
    isr = tuple(node_id for node_id in partition.isr if node_id in replicas)
    settled = replace(partition, replicas=tuple(replicas), adding=(), removing=())
    after = with_isr(settled, isr, policy)
    return elected(after, is_live, policy._replace(unclean=False)).partition


def finish_all(image: Image, policies: Policies) -> Outcome:
    """Finish every reassignment that has arrived."""
    outcome = Outcome([], [])
    for topic in image.topics.values():
        for partition in topic.partitions:
            if is_finished(partition):
                record = finish(partition, image.is_live, policies(topic.name))
                outcome.records.extend([record] if record is not None else [])
    return outcome
