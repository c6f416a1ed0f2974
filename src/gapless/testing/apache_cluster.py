"""A cluster of the real Apache Kafka, from its jars: three nodes, each broker and controller in one process.

    with ApacheCluster(heap_mb=256) as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})
        kafka.node(1).kill()     # SIGKILL, as a crash
        kafka.start()            # whoever is down comes back, on the same port and data

Topics have three replicas by default, of which two must be in sync; Kafka's own topics too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from gapless.testing.apache_kafka import ApacheKafka, ApacheKafkaFailed
from gapless.testing.block import EndsWithBlock
from gapless.testing.processes import free_ports

NODES = 3
MIN_INSYNC_REPLICAS = 2
START_TIMEOUT_S = 120.0


class ClusterNode(ApacheKafka):
    """One node, whose ports are known to the others before any of them starts."""

    def __init__(self, port: int, *, heap_mb: int, properties: Mapping[str, str]) -> None:
        super().__init__(heap_mb=heap_mb, properties=properties, start_timeout_s=START_TIMEOUT_S)
        self.port = port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


class ApacheCluster(EndsWithBlock):
    """All nodes. `properties` are server properties of each, on top of those that make them a cluster."""

    def __init__(self, *, heap_mb: int = 1024, properties: Mapping[str, str] | None = None) -> None:
        ports = free_ports(2 * NODES)
        brokers, controllers = ports[:NODES], ports[NODES:]
        common = {**_common_properties(controllers), **(properties or {})}
        self.nodes = [
            ClusterNode(broker, heap_mb=heap_mb, properties={**common, **_own(node_id, broker, controller)})
            for node_id, (broker, controller) in enumerate(zip(brokers, controllers, strict=True), 1)
        ]
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes)

    def node(self, node_id: int) -> ClusterNode:
        """By the id that clients know, from 1."""
        return self.nodes[node_id - 1]

    @property
    def running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.running]

    def prepare(self) -> None:
        """Format the disks. Part of the first `start()`; call it before if only the start is measured."""
        _on_each(self.nodes, ClusterNode.prepare)

    def start(self) -> None:
        """Start those that are down, and return when every node knows that all are there."""
        _on_each(self.nodes, ClusterNode.start)
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in self.nodes:
            while not _knows_all(node):
                if time.monotonic() > deadline:
                    raise ApacheKafkaFailed(
                        f"{node.bootstrap} did not see {NODES} brokers within {START_TIMEOUT_S:.0f} s;"
                        f" it said:\n{node.last_words()}"
                    )
                time.sleep(0.02)

    def close(self) -> None:
        """Kill all and remove what they left. A clean stop would wait for a quorum that is stopping too."""
        for node in self.nodes:
            node.kill()
        for node in self.nodes:
            node.close()


def _on_each(nodes: list[ClusterNode], do: Callable[[ClusterNode], None]) -> None:
    """All at once: no node is ready before there is a majority."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        for done in [pool.submit(do, node) for node in nodes]:
            done.result()


def _knows_all(node: ClusterNode) -> bool:
    client = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    try:
        return len(client.list_topics(timeout=5.0).brokers) == NODES
    except KafkaException:
        return False


def _common_properties(controllers: list[int]) -> dict[str, str]:
    voters = [f"{node_id}@127.0.0.1:{port}" for node_id, port in enumerate(controllers, 1)]
    replicated = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {
        "controller.quorum.voters": ",".join(voters),
        "default.replication.factor": str(NODES),
        "min.insync.replicas": str(MIN_INSYNC_REPLICAS),
        **{f"{topic}.replication.factor": str(NODES) for topic in replicated},
        "transaction.state.log.min.isr": str(MIN_INSYNC_REPLICAS),
        "share.coordinator.state.topic.min.isr": str(MIN_INSYNC_REPLICAS),
    }


def _own(node_id: int, port: int, controller_port: int) -> dict[str, str]:
    return {
        "node.id": str(node_id),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
