"""What all clients have in common: connections, and an idea of who leads what that may be outdated."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from gapless.simulator.clients.process import Part, Process, Promise, Running
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import FindCoordinatorRequest, MetadataRequest
from gapless.wire.request import RequestHeader

if TYPE_CHECKING:
    from gapless.simulator.history import Place
    from gapless.simulator.scene import Scene

REQUEST_MS = 1_500
FIRST_BACKOFF_MS = 40
MAX_BACKOFF_MS = 640
METADATA_VERSION = 9
COORDINATOR_VERSION = 4
GROUP_KEY, TRANSACTION_KEY = 0, 1

# Answers after which the same request may be sent again, perhaps to somebody else.
PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


class Client:
    """Somebody with a name and connections of its own."""

    def __init__(self, scene: Scene, name: str, number: int | None = None) -> None:
        """`number` is that of another client whose connections this one shares."""
        self.scene = scene
        self.world = scene.world
        self.history = scene.history
        self.name = name
        self.number = scene.new_client_number() if number is None else number
        self.random = Random(scene.case.seed * 1_000_003 + self.number)
        self.processes: list[Running] = []
        self._leaders: dict[Place, tuple[int, int]] = {}
        self._epochs: dict[Place, int] = {}
        """The newest epochs that it has heard of: who tells an older one is behind (KIP-320)."""
        self._coordinators: dict[tuple[int, str], int] = {}
        self._asked = self.number
        self._stalled_until_ms = 0

    # ---------------------------------------------------------------------------------------- processes

    def begin(self, process: Process) -> Running:
        """Let a process of this client go on from now on."""
        running = Running(self.world, process)
        running.stalled_until_ms = self._stalled_until_ms
        self.processes = [each for each in self.processes if not each.ended.done]
        self.processes.append(running)
        return running

    def stop(self) -> None:
        """The client's process is killed, and its connections end."""
        self._stalled_until_ms = 0
        for running in self.processes:
            running.is_killed = True  # all at once: what one of them gives back, no other may take
        for running in self.processes:
            running.stop()
        self.world.network.ended(self.number)

    def stall(self, ms: int) -> None:
        """It stands still for a while, and goes on as if nothing had been."""
        self._stalled_until_ms = self.world.now_ms + ms
        for running in self.processes:
            running.stalled_until_ms = self._stalled_until_ms

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing left to do."""
        return all(running.ended.done for running in self.processes)

    def what_is_left(self) -> Iterator[str]:
        """What it still has to do, for people."""
        if not self.is_idle:
            yield f"{self.name} still has something to do"

    # ------------------------------------------------------------------------------------------ asking

    def ask(
        self,
        broker: int,
        key: ApiKey,
        version: int,
        body: Any,
        purpose: Any = None,
        timeout_ms: int = REQUEST_MS,
    ) -> Promise:
        """Send a request to a broker; None comes if no answer did."""
        promise = Promise()
        header = RequestHeader(int(key), version, 0, self.name)
        self.world.network.ask((self.number, broker), purpose, header, body, timeout_ms, promise.keep)
        return promise

    def back_off(self, tries: int) -> int:
        """How long to wait before the next try."""
        backoff_ms = min(FIRST_BACKOFF_MS << min(tries, 8), MAX_BACKOFF_MS)
        return backoff_ms // 2 + self.random.randrange(backoff_ms)

    def _anybody(self) -> int:
        self._asked += 1
        return 1 + self._asked % len(self.world.hosts)

    # -------------------------------------------------------------------------------------------- finding

    def leader(self, place: Place) -> Part:
        """Who leads a place, and under which epoch, as far as this client knows: asks until it is told."""
        tries = 0
        while place not in self._leaders:
            yield from self._refresh(place[0])
            if place not in self._leaders:
                yield self.back_off(tries)
                tries += 1
        return self._leaders[place]

    def forget_leader(self, place: Place, told: tuple[int, int] | None = None) -> None:
        """What was believed of a place was wrong; perhaps the answer has told better."""
        self._leaders.pop(place, None)
        if told is not None and told[0] >= 0:
            self._believe(place, told)

    def _believe(self, place: Place, told: tuple[int, int]) -> None:
        if told[1] >= self._epochs.get(place, -1):
            self._epochs[place] = told[1]
            self._leaders[place] = told

    def _refresh(self, topic: str) -> Part:
        """Ask anybody who leads a topic's partitions; returns all of them, or none if nobody answers."""
        body = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        answer = yield self.ask(self._anybody(), ApiKey.METADATA, METADATA_VERSION, body)
        places: list[Place] = []
        if answer is None:
            return places
        for found in answer.topics:
            for partition in found.partitions:
                place = (found.name, partition.partition_index)
                places.append(place)
                if partition.leader_id >= 0 and not partition.error_code:
                    self._believe(place, (partition.leader_id, partition.leader_epoch))
        return places

    def places_of(self, topic: str) -> Part:
        """All partitions of a topic: asks until it is told."""
        tries = 0
        while not (places := (yield from self._refresh(topic))):
            yield self.back_off(tries)
            tries += 1
        return sorted(places)

    def coordinator(self, kind: int, key: str) -> Part:
        """Who coordinates a group or a transactional id: asks until it is told."""
        tries = 0
        while (kind, key) not in self._coordinators:
            body = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            answer = yield self.ask(self._anybody(), ApiKey.FIND_COORDINATOR, COORDINATOR_VERSION, body)
            if answer is not None and not answer.coordinators[0].error_code:
                self._coordinators[kind, key] = answer.coordinators[0].node_id
            else:
                yield self.back_off(tries)
                tries += 1
        return self._coordinators[kind, key]

    def forget_coordinator(self, kind: int, key: str) -> None:
        """It is somebody else now, perhaps."""
        self._coordinators.pop((kind, key), None)
