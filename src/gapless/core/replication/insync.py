"""Who is in sync: what a leader wishes for the in-sync sets of its partitions, and how it gets it.

A follower leaves when it has not caught up for replica.lag.time.max.ms; it returns when it has everything
below the high watermark and from before this leader's epoch, and is the life of its broker that the journal
knows. Wishes are collected for a moment and enter the journal together, each decided on the newest image.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gapless.core.changes import Change, Decision
from gapless.core.membership.elections import Policy, with_isr
from gapless.core.partition import Partition
from gapless.core.records import BrokerRegistered, MetadataRecord, PartitionChanged
from gapless.core.replication.followers import Follower

if TYPE_CHECKING:
    from gapless.core.node import Node

GATHERING_MS = 5
LONGEST_LOOK_MS = 1000
"""How often all partitions are looked at, at the least."""


class InSync:
    """The wishes of one broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._wishes: dict[tuple[str, int], None] = {}
        self._proposed: dict[tuple[str, int], None] = {}
        """The wishes in the proposal that is on its way to the journal."""
        self._gathering = False
        self._lag_max_ms: int = node.settings.get("replica.lag.time.max.ms")

    def begin(self) -> None:
        """Look after all partitions from now on."""
        self._look_later()

    def _look_later(self) -> None:
        interval_ms = max(1, min(self._lag_max_ms // 2, LONGEST_LOOK_MS))
        self._node.timers.at(self._node.now_ms + interval_ms, self._look)

    def _look(self) -> None:
        for partition in self._node.partitions.values():
            if partition.followers is not None:
                self.consider(partition)
        self._node.replicas.handover.look()
        self._look_later()

    def consider(self, partition: Partition) -> None:
        """Propose another in-sync set, if this one should be changed."""
        if self._wanted(partition) == partition.isr:
            return
        self._wishes[partition.name] = None
        self._gather()

    def _gather(self) -> None:
        if not self._gathering:
            self._gathering = True
            self._node.timers.at(self._node.now_ms + GATHERING_MS, self._propose)

    def _propose(self) -> None:
        self._node.propose(Change(self._decide, self._done, self._failed))

    def _decide(self) -> Decision:
        """Decided anew whenever the image has moved on; from here on additions may be in the journal."""
        records: list[MetadataRecord] = []
        self._proposed |= self._wishes
        self._wishes = {}
        for name in self._proposed:
            partition = self._node.partitions.get(name)
            if partition is None or partition.followers is None:
                continue
            isr = self._wanted(partition)
            partition.followers.propose(tuple(node_id for node_id in isr if node_id not in partition.isr))
            if isr != partition.isr:
                records.append(self._record(partition, isr))
        return Decision(records, lambda: None)

    def _record(self, partition: Partition, isr: tuple[int, ...]) -> PartitionChanged:
        topic = self._node.image.topics_by_id[partition.topic_id]
        assignment = topic.partitions[partition.name.partition]
        policy = Policy(partition.config.min_insync_replicas)
        return replace(with_isr(assignment, isr, policy), partition_epoch=assignment.partition_epoch + 1)

    def _done(self, _answer: Any) -> None:
        self._proposed.clear()
        self._gathering = False
        if self._wishes:  # they came after the decision, so it cannot have met them
            self._gather()

    def _failed(self, _reason: str) -> None:
        # Whether it is in the journal is not known: proposed members count on, until the next look decides.
        self._proposed.clear()
        self._wishes.clear()
        self._gathering = False

    # ----------------------------------------------------------------------------------------- rules

    def _wanted(self, partition: Partition) -> tuple[int, ...]:
        """The in-sync set as it should be."""
        followers = partition.followers
        if followers is None:
            return partition.isr
        end, now_ms, lag_max_ms = partition.end_for_followers, self._node.now_ms, self._lag_max_ms
        kept = [
            node_id
            for node_id in partition.isr
            # Whoever cannot write will hand over, and needs somebody to hand over to.
            if partition.offline is not None or not followers.lags(node_id, end, now_ms, lag_max_ms)
        ]
        kept += [
            node_id
            for node_id in partition.replicas
            if node_id not in partition.isr and self._may_join(partition, node_id)
        ]
        return tuple(kept)

    def _may_join(self, partition: Partition, node_id: int) -> bool:
        follower = partition.followers.by_id.get(node_id) if partition.followers is not None else None
        broker = self._node.image.brokers.get(node_id)
        if follower is None or broker is None or broker.fenced or not is_same_life(follower, broker):
            return False
        return follower.end_offset >= joins_from(partition)


def is_same_life(follower: Follower, broker: BrokerRegistered) -> bool:
    """Whether the life of a broker that fetched last is the one that the journal knows (KIP-903)."""
    return follower.broker_epoch == broker.epoch


def joins_from(partition: Partition) -> int:
    """How much a follower must have to be in sync.

    Below the high watermark is not enough: a new leader may not know yet all that its predecessor has
    committed, which is anywhere before its own first record (KAFKA-7128).
    """
    return max(partition.high_watermark, partition.epoch_start)
