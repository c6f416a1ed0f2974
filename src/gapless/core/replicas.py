"""The replicas that this broker holds: taken up, led or followed, and dropped as the journal says."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from gapless.core.config_keys import BROKER, TOPIC
from gapless.core.contract import TopicPartition
from gapless.core.coordinators import COORDINATORS
from gapless.core.image import Topic
from gapless.core.log import LogFailed
from gapless.core.partition import Partition, ReplicaKey, log_config
from gapless.core.records import PartitionChanged
from gapless.core.replication.fetchers import Fetchers
from gapless.core.replication.handover import HandOver
from gapless.core.replication.insync import InSync
from gapless.core.replication.serving import Leading
from gapless.core.shard import Shard

if TYPE_CHECKING:
    from gapless.core.node import Node


class Replicas:
    """All partitions of one broker, and the coordinators that live in some of them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.by_key: dict[ReplicaKey, Partition] = {}
        """The same, by how brokers name them to each other."""
        self.failed: dict[tuple[str, int], str] = {}
        self.shards: dict[tuple[str, int], Shard] = {}
        self.leading = Leading(node)
        self.insync = InSync(node)
        self.handover = HandOver(node)
        self._fetchers = Fetchers(node)

    def begin_serving(self) -> None:
        """From now on clients are served: begin to coordinate, and to follow."""
        for partition in self.partitions.values():
            self._take_up_shard(partition)
            self._fetchers.follow(partition)
        self.insync.begin()

    def take_up(self, topic: Topic, assignment: PartitionChanged) -> None:
        """Hold a replica as the journal says."""
        node = self._node
        name = TopicPartition(topic.name, assignment.partition)
        partition = self.partitions.get(name)
        if node.node_id not in assignment.replicas:
            if partition is not None:
                self._drop(partition)
            return
        if partition is None:
            config = node.topic_config(topic.name)
            try:
                log = node.store.open(topic.name, topic.topic_id, assignment.partition, log_config(config))
                partition = Partition(name, topic.topic_id, node.node_id, log, config, self.leading.news)
            except LogFailed as error:
                self.failed[name] = str(error)
                return
            self.failed.pop(name, None)
            self.partitions[name] = self.by_key[partition.replica_key] = partition
        renewed = partition.leader_epoch != assignment.leader_epoch
        partition.assign(assignment, node.now_ms)
        if node.serving and renewed:
            self._take_up_shard(partition)
            self._fetchers.follow(partition)
        self.leading.news(partition, True)
        node.touch(partition)

    def _drop(self, partition: Partition) -> None:
        """Hold a replica no more."""
        name = partition.name
        del self.partitions[name], self.by_key[partition.replica_key]
        partition.retire()
        self._drop_shard(name)
        self._fetchers.drop(partition)
        self._delete_log(name)
        self.leading.news(partition, True)
        self._node.mark_touched(name)

    def _take_up_shard(self, partition: Partition) -> None:
        """Begin to coordinate what an internal partition holds, if this broker leads it (now)."""
        node = self._node
        self._drop_shard(partition.name)
        new_state = COORDINATORS.get(partition.name.topic)
        if new_state is not None and partition.is_leader:
            self.shards[partition.name] = Shard(node, partition, new_state)

    def _drop_shard(self, name: TopicPartition) -> None:
        shard = self.shards.pop(name, None)
        if shard is not None:
            shard.resign()

    def drop_topic(self, topic: Topic) -> None:
        """A topic was deleted."""
        node = self._node
        for assignment in topic.partitions:
            name = TopicPartition(topic.name, assignment.partition)
            self.failed.pop(name, None)
            partition = self.partitions.get(name)
            if partition is not None:
                self._drop(partition)
            node.mark_touched(name)
        for shard in self.shards.values():
            shard.topic_deleted(topic.name)

    def _delete_log(self, name: TopicPartition) -> None:
        node = self._node
        try:
            node.store.delete(*name)
        except LogFailed as error:
            # The topic is gone all the same; what is left is told, and moved aside if the name comes back.
            self.failed[name] = str(error)

    def reconfigure(self, resources: Collection[tuple[int, str]]) -> None:
        """Let partitions take over changed settings: a broker's are the defaults of all topics."""
        node = self._node
        names = [name for kind, name in resources if kind == TOPIC]
        if any(kind == BROKER for kind, _ in resources):
            names = list(node.image.topics)
        for topic in filter(None, map(node.image.topics.get, names)):
            config = node.topic_config(topic.name)
            for assignment in topic.partitions:
                partition = self.partitions.get((topic.name, assignment.partition))
                if partition is not None:
                    partition.configure(config)
                    node.touch(partition)
