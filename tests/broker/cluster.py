"""Clusters of broker processes, each started by itself, and what the journal says of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from tests.broker.process import Broker, wait_until


class Member(Broker):
    """One broker of a cluster, as a process of its own."""

    def __init__(
        self, data_dir: Path, node_id: int, cluster_size: int, config: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(data_dir, config=dict(config or {}))
        self.node_id = node_id
        self._cluster_size = cluster_size

    def _options(self) -> list[str | Path]:
        own: list[str | Path] = ["--join", self.data_dir, "--node-id", str(self.node_id)]
        _, _, *others = super()._options()  # without --data
        return [*own, "--cluster-size", str(self._cluster_size), *others]


class Members:
    """All brokers of a cluster, by number."""

    def __init__(self, data_dir: Path, members: Mapping[int, Member]) -> None:
        self.data_dir = data_dir
        self._members = members

    def __getitem__(self, node_id: int) -> Member:
        return self._members[node_id]

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def bootstrap(self) -> str:
        return ",".join(member.bootstrap for member in self)

    def start_all(self) -> None:
        """Start all at once, and return when each knows of the others."""
        starts = [Thread(target=member.start) for member in self]
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        wait_until(self.all_know_each_other, "all brokers are there", self.last_words)

    def all_know_each_other(self) -> bool:
        everybody = {member.node_id for member in self}
        return all(self.known_to(member) == everybody for member in self)

    def known_to(self, member: Member) -> set[int]:
        """The live brokers, as one of them tells it."""
        with member.connect() as client:
            return {broker.node_id for broker in client.metadata().brokers}

    def last_words(self) -> str:
        return "\n".join(f"broker {member.node_id}:\n{member.last_words()}" for member in self)

    # -------------------------------------------------------------------------------------- the journal

    def journal(self, kind: str, after_version: int = 0) -> list[dict[str, Any]]:
        """Records of a kind, with the version that they came with."""
        with closing(sqlite3.connect(self.data_dir / "metadata.sqlite")) as database:
            query = "select version, records from journal where version > ? order by version"
            rows = database.execute(query, (after_version,)).fetchall()
        found = [{"version": version, **record} for version, text in rows for record in json.loads(text)]
        return [record for record in found if record["kind"] == kind]

    def partition(self, topic: str, partition: int = 0) -> dict[str, Any]:
        """A partition's assignment, as the journal has it now."""
        (topic_id,) = [each["topic_id"] for each in self.journal("TopicCreated") if each["name"] == topic]
        changes = self.journal("PartitionChanged")
        wanted = (topic_id, partition)
        return [each for each in changes if (each["topic_id"], each["partition"]) == wanted][-1]

    def wait_for(self, topic: str, *, isr: set[int], partition: int = 0) -> None:
        """Until the in-sync set is this."""
        wait_until(
            lambda: set(self.partition(topic, partition)["isr"]) == isr,
            f"the in-sync set is {isr}",
            lambda: f"{self.partition(topic, partition)}\n{self.last_words()}",
        )


@contextmanager
def running_cluster(
    data_dir: Path, brokers: int = 3, config: Mapping[str, str] | None = None
) -> Iterator[Members]:
    """Brokers 1 to N, started all at once on a new folder."""
    with ExitStack() as held:
        members = {number: Member(data_dir, number, brokers, config) for number in range(1, brokers + 1)}
        for member in members.values():
            held.callback(member.close)
        cluster = Members(data_dir, members)
        cluster.start_all()
        yield cluster
