"""A broker's or a cluster's life in a benchmark: fresh data, started when needed, loaded, then gone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from confluent_kafka.admin import AdminClient, BrokerMetadata, NewTopic

from benchmarks.brokers import Broker
from benchmarks.clients.jobs import FirstAck, Job, Produce, encode
from benchmarks.sizes import Sizes
from gapless.errors import GaplessError

_ROOT = Path(__file__).resolve().parent.parent
_CLIENT_TIMEOUT_S = 300.0
_TOPIC_TIMEOUT_S = 60.0

CONSUMED_TOPIC = "small-records"
"""The topic of `produce-100`, which is read by `consume`."""


class BenchmarkFailed(GaplessError):
    """A client or broker failed; there is no figure to show."""


class Session:
    """What a step of a scenario works with."""

    def __init__(self, broker: Broker, sizes: Sizes) -> None:
        self.sizes = sizes
        self.broker = broker
        self._started = False
        self._topics: set[str] = set()

    @property
    def broker_pids(self) -> list[int]:
        self.start()
        return self.broker.pids

    @property
    def bootstrap(self) -> str:
        self.start()
        return self.broker.bootstrap

    def start(self) -> None:
        """Start the broker unless it runs."""
        if not self._started:
            self.broker.prepare()
            self.broker.start()
            self._started = True

    def start_and_time_first_ack(self) -> float:
        """Seconds from the launch to the first record that every replica has acknowledged."""
        self.broker.prepare()
        job = FirstAck(self.broker.bootstrap, "first", self.broker.replicas, _TOPIC_TIMEOUT_S)
        with _client(job) as client:
            try:
                _expect_waiting(client)
                launched_at_s = time.monotonic()
                self.broker.start()
            except BaseException:
                client.kill()
                raise
            self._started = True
            return _answer_of(job, client)["acked_at_s"] - launched_at_s

    def discard(self) -> None:
        """Kill the broker and remove its data."""
        self.broker.discard()

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """A topic whose partitions all have a leader; in a cluster two of the three replicas must follow."""
        replicas = self.broker.replicas
        config = {"min.insync.replicas": str(replicas - 1)} if replicas > 1 else {}
        topic = NewTopic(name, partitions, replicas, config=config)
        admin = self._admin()  # kept: an answer does not outlive who asked
        admin.create_topics([topic])[name].result(_TOPIC_TIMEOUT_S)
        self.wait_until_in_sync(name, partitions)
        self._topics.add(name)
        return name

    def wait_until_in_sync(self, topic: str, partitions: int = 1) -> None:
        """Until every partition of the topic has a leader, and all its replicas follow."""
        admin, deadline = self._admin(), time.monotonic() + _TOPIC_TIMEOUT_S
        while not _is_in_sync(admin, topic, partitions, self.broker.replicas):
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"topic {topic} was not in sync after {_TOPIC_TIMEOUT_S:.0f} s")
            time.sleep(0.05)

    def leader_of(self, topic: str) -> BrokerMetadata:
        """Who leads partition 0; a broker that has just come back may not know the topic yet."""
        admin, deadline = self._admin(), time.monotonic() + _TOPIC_TIMEOUT_S
        while True:
            found = admin.list_topics(topic, timeout=_TOPIC_TIMEOUT_S)
            partition = found.topics[topic].partitions.get(0)
            if partition is not None and partition.leader in found.brokers:
                return found.brokers[partition.leader]
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"nobody leads {topic} after {_TOPIC_TIMEOUT_S:.0f} s")
            time.sleep(0.05)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def run(self, job: Job) -> dict[str, float]:
        """Run a client to its end and return its numbers."""
        with _client(job) as client:
            return _answer_of(job, client)

    def consumed_topic(self) -> str:
        """The topic to be consumed, filled now if `produce-100` was not asked for."""
        if CONSUMED_TOPIC not in self._topics:
            topic = self.create_topic(CONSUMED_TOPIC)
            self.run(Produce(self.bootstrap, self.broker_pids, topic, self.sizes.produce_100, 100))
        return CONSUMED_TOPIC


def _is_in_sync(admin: AdminClient, topic: str, partitions: int, replicas: int) -> bool:
    found = admin.list_topics(topic, timeout=_TOPIC_TIMEOUT_S).topics[topic].partitions
    return len(found) == partitions and all(
        each.leader >= 0 and len(each.isrs) == replicas for each in found.values()
    )


def _client(job: Job) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.clients", encode(job)],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer_of(job: Job, client: subprocess.Popen[str]) -> dict[str, float]:
    try:
        said, complained = client.communicate(timeout=_CLIENT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        client.kill()
        raise BenchmarkFailed(f"{type(job).__name__} did not end within {_CLIENT_TIMEOUT_S:.0f} s") from None
    except BaseException:
        client.kill()
        raise
    if client.returncode != 0:
        last_words = complained.strip().splitlines()[-1:] or ["it said nothing"]
        raise BenchmarkFailed(f"the client failed ({type(job).__name__}): {last_words[0]}")
    answer: dict[str, float] = json.loads(said)
    return answer


def _expect_waiting(client: subprocess.Popen[str]) -> None:
    out: IO[str] | None = client.stdout
    if out is None or out.readline() != "waiting\n":
        _, complained = client.communicate()
        raise BenchmarkFailed(f"the client did not come up: {complained.strip()}")
