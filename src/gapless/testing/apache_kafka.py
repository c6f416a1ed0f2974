"""The real Apache Kafka, from its jars: one KRaft node on free ports, and its command-line tools.

    with ApacheKafka(heap_mb=256) as kafka:
        kafka_tool("kafka-topics", "--bootstrap-server", kafka.bootstrap, "--list")

The node runs with the JVM options of Kafka's own scripts, so that it can be measured against; with `light` it
is slower, but costs half as much to start and to keep.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from gapless.jars import jar_paths
from gapless.java import find_java
from gapless.testing.processes import free_ports
from gapless.testing.server import LocalServer, ServerFailed

CLUSTER_ID = "Z2FwbGVzcy10ZXN0LTAwMQ"

# What Kafka's start script passes for a server.
_SERVER_OPTIONS = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
    *("-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
# What lives for seconds, or has little to do: the quick compiler and the smallest collector suit it.
_LIGHT_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
# A controller that has nothing to write writes just that twice a second; here nobody waits for it.
_LIGHT_PROPERTIES = {"metadata.max.idle.interval.ms": "0"}

_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
"""

# The classes behind Kafka's scripts.
TOOLS = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}


class ApacheKafkaFailed(ServerFailed):
    """Apache Kafka did not start, or one of its tools failed. The message has the end of what it said."""


def kafka_tool(
    tool: str, *arguments: str | Path, stdin: str = "", timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command-line tools, by its script's name or its class, to its end.

    Its exit status is for the caller to judge: some tools report failures only in what they print.
    """
    return subprocess.run(
        [*_java_command("-Xmx256m", *_LIGHT_OPTIONS), TOOLS.get(tool, tool), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _java_command(*options: str) -> list[str | Path]:
    folder = jar_paths("kafka")[0].parent
    return [find_java().executable, *options, "-cp", f"{folder}/*"]


class ApacheKafka(LocalServer):
    """One Apache Kafka node, broker and controller in one process, that ends with the `with` block.

    `properties` are server properties on top of those of a single node. After `kill()` or `stop()`, `start()`
    finds the same data and the same ports again. `prepare()` formats the disk and is part of the first
    `start()`; call it before if only the start is to be measured.
    """

    name = "Apache Kafka"
    failed = ApacheKafkaFailed

    def __init__(
        self,
        *,
        heap_mb: int = 1024,
        light: bool = False,
        properties: Mapping[str, str] | None = None,
        start_timeout_s: float = 90.0,
    ) -> None:
        super().__init__(start_timeout_s)
        self._heap_mb = heap_mb
        self._options = _LIGHT_OPTIONS if light else _SERVER_OPTIONS
        self._properties = {**(_LIGHT_PROPERTIES if light else {}), **(properties or {})}

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def data_folder(self) -> Path:
        return self.folder / "data"

    def _fill_folder(self) -> None:
        """Format the disk."""
        (self.folder / "log4j2.properties").write_text(_LOGGING.format(level="info"))
        done = kafka_tool("kafka-storage", "format", "-t", CLUSTER_ID, "-c", self._configuration)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            self.close()
            raise ApacheKafkaFailed(f"Apache Kafka could not format its disk: {said}")

    @property
    def _configuration(self) -> Path:
        return self.folder / "server.properties"

    def _choose_ports(self) -> None:
        self._port, controller_port = free_ports(2)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data_folder),
            # One node cannot keep the three copies that Kafka wants of its own topics by default.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self._properties,
        }
        self._configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _command(self) -> list[str | Path]:
        options = (
            *(f"-Xmx{self._heap_mb}m", f"-Xms{self._heap_mb}m", *self._options),
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
        )
        return [*_java_command(*options), "kafka.Kafka", self._configuration]

    def _is_ready(self) -> bool:
        """Ask as a client whether the node answers with itself."""
        client = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 50,
                "log_level": 0,
            }
        )
        try:
            return bool(client.list_topics(timeout=1.0).brokers)
        except KafkaException:
            return False
