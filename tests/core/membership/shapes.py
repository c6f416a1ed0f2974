"""Images made by hand, for rules that are functions of them."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from gapless.core.image import Image
from gapless.core.membership.decisions import Policies
from gapless.core.membership.elections import Policy
from gapless.core.records import (
    BrokerRegistered,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
    TopicCreated,
)

ID = UUID(int=7)


def partition(
    leader: int,
    isr: tuple[int, ...],
    eligible: tuple[int, ...] = (),
    replicas: tuple[int, ...] = (1, 2, 3),
    last_leader: int = -1,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> PartitionChanged:
    return PartitionChanged(ID, 0, leader, 4, replicas, isr, 9, eligible, last_leader, adding, removing)


def image(
    *partitions: PartitionChanged,
    live: tuple[int, ...] = (1, 2, 3),
    fenced: tuple[int, ...] = (),
    controller: int = 1,
) -> Image:
    """Brokers with epoch 10 + their number; topic "t" with the given partitions."""
    made = Image()
    for node_id in sorted((*live, *fenced)):
        made.replay(BrokerRegistered(node_id, f"host-{node_id}", 9092, 10 + node_id, node_id in fenced))
    made.replay(ControllerElected(controller, 3))
    made.replay(TopicCreated("t", ID))
    for index, one in enumerate(partitions):
        made.replay(replace(one, partition=index))
    made.version = 50
    return made


def under(min_insync: int = 2, *, unclean: bool = False, flush: bool = False) -> Policies:
    policy = Policy(min_insync, unclean, flush)
    return lambda topic: policy


def after(start: Image, records: list[MetadataRecord]) -> PartitionChanged:
    """The first partition once the records are replayed."""
    for record in records:
        start.replay(record)
    return start.topics["t"].partitions[0]
