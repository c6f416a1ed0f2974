"""What a change among the brokers means for all partitions: from an image to records. Pure functions.

Each function decides everything that follows from one event, so that it can enter the journal as one
proposal: nobody ever sees a dead broker lead, nor a registered one whose old life is still in sync.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from gapless.core.image import Image, Topic
from gapless.core.membership.elections import (
    NOBODY,
    Election,
    IsLive,
    Policy,
    elected,
    sealed,
    with_isr,
)
from gapless.core.records import BrokerRegistered, ControllerElected, MetadataRecord, PartitionChanged

Policies = Callable[[str], Policy]
"""A topic's policy by its name."""


class Outcome(NamedTuple):
    """What to write, and what the operator should hear once it is written."""

    records: list[MetadataRecord]
    problems: list[str]


class Arrival(NamedTuple):
    """A broker that begins a life."""

    node_id: int
    host: str
    port: int
    keeps_all: bool = True
    keeps_flushed: bool = True


def fence(image: Image, policies: Policies, gone: Collection[int]) -> Outcome:
    """Brokers are dead, hung or about to stop: they lead nothing and are in no in-sync set any more."""
    outcome = Outcome([], [])
    outcome.records.extend(replace(image.brokers[node_id], fenced=True) for node_id in sorted(gone))

    def is_live(node_id: int) -> bool:
        return node_id not in gone and image.is_live(node_id)

    for topic in image.topics.values():
        policy = policies(topic.name)
        for partition in topic.partitions:
            if partition.leader in gone or any(node_id in gone for node_id in partition.isr):
                after = _without(partition, gone, policy)
                _note(outcome, topic, partition, elected(after, is_live, policy))
    return outcome


def register(image: Image, policies: Policies, who: Arrival, dead: Collection[int] = ()) -> Outcome:
    """A broker begins a life, while others are known to be dead.

    Its old life is over: it leaves the in-sync sets that others uphold, and what it leads alone it leads
    anew. If it may have lost records it is neither in sync nor eligible, but for topics flushed before
    acknowledging. Whatever nobody led may now be led by it.
    """
    outcome = Outcome([], [])
    outcome.records.extend(replace(image.brokers[node_id], fenced=True) for node_id in sorted(dead))
    outcome.records.append(BrokerRegistered(who.node_id, who.host, who.port, image.version + 1))
    controller = image.controller.node_id
    if controller != who.node_id and (controller in dead or not image.is_live(controller)):
        outcome.records.append(ControllerElected(who.node_id, image.controller.epoch + 1))

    def is_live(node_id: int) -> bool:
        return node_id == who.node_id or (node_id not in dead and image.is_live(node_id))

    for topic in image.topics.values():
        policy = policies(topic.name)
        for partition in topic.partitions:
            concerned = (partition.leader, *partition.isr, *partition.replicas)
            if who.node_id in concerned or any(node_id in dead for node_id in concerned):
                after = _entered(_without(partition, dead, policy), who, is_live, policy)
                renewed = partition.leader == who.node_id
                _note(outcome, topic, partition, elected(after, is_live, policy), renewed=renewed)
    return outcome


def _entered(partition: PartitionChanged, who: Arrival, is_live: IsLive, policy: Policy) -> PartitionChanged:
    """A partition whose replica has just begun a new life, before somebody is elected."""
    keeps = _keeps_committed(who, policy)
    others = tuple(node_id for node_id in partition.isr if node_id != who.node_id)
    stays = keeps and not any(map(is_live, others)) and who.node_id in partition.isr
    isr = partition.isr if stays else others
    return with_isr(partition, isr, policy, lost=() if keeps else (who.node_id,))


def _keeps_committed(who: Arrival, policy: Policy) -> bool:
    """Whether a broker still has all that was committed when its last life ended."""
    return who.keeps_all or (who.keeps_flushed and policy.flushed)


def _without(partition: PartitionChanged, gone: Collection[int], policy: Policy) -> PartitionChanged:
    return with_isr(partition, (node_id for node_id in partition.isr if node_id not in gone), policy)


def hand_over(image: Image, policies: Policies, node_id: int, failed: Iterable[tuple[str, int]]) -> Outcome:
    """A broker cannot write some partitions any more: others who are in sync lead them; it says which.

    It leaves the in-sync set, and is not eligible: who knows what its disk has kept. Where nobody else is in
    sync it leads on.
    """
    outcome = Outcome([], [])
    for name, index in failed:
        topic = image.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            continue  # deleted meanwhile
        partition = topic.partitions[index]
        others = tuple(each for each in partition.isr if each != node_id)
        if partition.leader == node_id and any(map(image.is_live, others)):
            policy = policies(name)
            after = with_isr(partition, others, policy, lost=(node_id,))
            _note(outcome, topic, partition, elected(after, image.is_live, policy))
            outcome.problems.append(f"{name}-{index}")
    return outcome


def elect_leaderless(image: Image, policies: Policies) -> Outcome:
    """Look again at what nobody leads: a setting may allow now what it did not before."""
    outcome = Outcome([], [])
    for topic in image.topics.values():
        for partition in topic.partitions:
            if partition.leader == NOBODY:
                _note(outcome, topic, partition, elected(partition, image.is_live, policies(topic.name)))
    return outcome


def take_control(image: Image, node_id: int) -> ControllerElected:
    """The record that makes a broker the controller."""
    return ControllerElected(node_id, image.controller.epoch + 1)


def prefer(image: Image) -> Outcome:
    """Give leadership back to the first replica wherever it is in sync."""
    outcome = Outcome([], [])
    for topic in image.topics.values():
        for partition in topic.partitions:
            if can_be_preferred(image, partition):
                _note(outcome, topic, partition, Election(preferred(partition)))
    return outcome


def can_be_preferred(image: Image, partition: PartitionChanged) -> bool:
    """Whether the first replica does not lead, and could."""
    first = partition.replicas[0]
    return partition.leader != first and first in partition.isr and image.is_live(first)


def preferred(partition: PartitionChanged) -> PartitionChanged:
    """The partition led by its first replica."""
    return replace(partition, leader=partition.replicas[0], last_leader=NOBODY)


def floors_moved(image: Image, policies: Policies, topics: Collection[str]) -> Iterator[PartitionChanged]:
    """The smallest in-sync set of these topics was changed: who is eligible under `policies`?

    Where the set now suffices the high watermark may advance, and those outside no longer hold all.
    """
    for name in topics:
        for partition in image.topics[name].partitions:
            record = sealed(partition, with_isr(partition, partition.isr, policies(name)))
            if record is not None:
                yield record


def _note(
    outcome: Outcome, topic: Topic, before: PartitionChanged, election: Election, *, renewed: bool = False
) -> None:
    after = election.partition
    record = sealed(before, after, renewed=renewed and after.leader == before.leader)
    if record is not None:
        outcome.records.append(record)
    if election.unclean and len(after.replicas) > 1:  # of a sole replica nobody else can know more
        outcome.problems.append(unclean_line(topic.name, before, after))


def unclean_line(topic: str, before: PartitionChanged, after: PartitionChanged) -> str:
    """What the operator should know of an unclean election."""
    return (
        f"unclean election: broker {after.leader} leads {topic}-{before.partition} from epoch "
        f"{before.leader_epoch + 1} on; records that it lacks are lost"
    )
