"""One case on stage: the world, its clients, its history, and the checkers that look on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from uuid import UUID

from gapless.core.contract import TopicPartition
from gapless.core.coordinators import CONSUMER_OFFSETS, INTERNAL_TOPIC_SHAPES, TRANSACTION_STATE
from gapless.core.image import FLUSH_MESSAGES, FLUSHED_FIRST
from gapless.core.membership.elections import NOBODY
from gapless.core.partition import Partition
from gapless.core.records import ConfigSet, MetadataRecord, PartitionChanged, TopicCreated
from gapless.simulator.case import RETENTION_MS, UNCLEAN, Case, ClientPlan, Step, TopicPlan
from gapless.simulator.clients.admin import Admin
from gapless.simulator.clients.client import Client
from gapless.simulator.clients.consumer import Consumer
from gapless.simulator.clients.group import Member
from gapless.simulator.clients.producer import Producer
from gapless.simulator.clients.relay import Relay
from gapless.simulator.clients.transactional import TransactionalProducer
from gapless.simulator.history import History, Place, Reading
from gapless.simulator.world import Host, World
from gapless.simulator.world.network import Way

FIRST_CLIENT = 1_001
TOPIC_CONFIG = 2
SETTLE_LIMIT_MS = 90_000
"""How long after the last fault all must be well again: a new leader bears gaps of producers for 65 s."""
LOOK_EVERY_MS = 100
NEVER_SEEN = (-1, -1, -1, -1, -1)
"""Watermark, end, start, epoch and leader of a replica at which nobody has looked: none has such ones."""

CLIENTS: dict[str, type[Client]] = {
    "producer": Producer,
    "transactional": TransactionalProducer,
    "consumer": Consumer,
    "member": Member,
    "relay": Relay,
}
"""By kind."""

# Short, so that a fault and what follows from it fit into some seconds.
SETTINGS = {
    "broker.session.timeout.ms": "900",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "800",
    "replica.fetch.backoff.ms": "50",
    "auto.create.topics.enable": "false",
    "leader.imbalance.check.interval.seconds": "4",
    "group.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.heartbeat.interval.ms": "400",
}


class Scene:
    """A case as it is played."""

    def __init__(self, case: Case, enter: Callable[[World], object] = lambda world: None) -> None:
        """`enter` is called with the world before anybody starts."""
        self.case = case
        settings = SETTINGS | case.settings
        self.world = World(case.brokers, seed=case.seed, started=False, settings=settings)
        enter(self.world)
        self.history = History()
        self.clients: dict[str, Client] = {}
        self.topics = {topic.name: topic for topic in case.topics}
        """Each as it is now, or as the least that it has promised so far."""
        self.disk_delay_ms: dict[int, int] = {}
        self.broken_disks: dict[int, None] = {}
        self.excused: dict[str, str] = {}
        """Topics that may have lost records by rights, and why."""
        self.read_before: dict[Reading, int] = {}
        """How much each consumer had got of such a topic before."""
        self.injected: dict[str, int] = {}
        """How often each fault has come to pass."""
        self.on_strike: list[Callable[[str, tuple[int, ...]], None]] = []
        """Called with each fault that has waited for its moment, and with the brokers that it hits."""
        self._armed: dict[tuple[Way, bool], str] = {}
        self.settled = False
        """Whether all was well in the end."""
        self.on_change: list[Callable[[Host, Place, Partition], None]] = []
        """Called with each replica whose ends, watermark or leadership a step has changed."""
        self._awaited: dict[Place, list[Callable[[], None]]] = {}
        self._known: dict[Partition, tuple[int, int, int, int, int]] = {}
        """Each replica as it was after the last step of its broker."""
        self._client_numbers = FIRST_CLIENT
        self._prepare()

    def _prepare(self) -> None:
        world = self.world
        if self.case.jitter:
            chances = Random(self.case.seed ^ 0x1A7E)
            world.network.latency_ms = lambda: 1 if chances.getrandbits(5) else 1 + chances.getrandbits(4)
            world.journal.latency_ms = lambda: 1 + chances.getrandbits(2)
            world.journal.answers_at_once = False
        world.flush_latency_ms = lambda node_id: 1 + self.disk_delay_ms.get(node_id, 0)
        internal = [
            TopicPlan(
                name,
                1,
                min(3, self.case.brokers),
                {**shape.configs, "min.insync.replicas": "2", **self.case.internal},
            )
            for name, shape in INTERNAL_TOPIC_SHAPES.items()
        ]
        self.topics |= {topic.name: topic for topic in internal}
        world.append(*self._shape())
        for node_id in world.hosts:
            world.start(node_id)
        world.run(60)
        world.on_step = self._stepped
        world.network.struck = self._struck
        world.journal.on_entry.append(self._decided)
        for plan in self.case.clients:
            self.clients[plan.name] = self._client(plan)
        self.admin = Admin(self, "the administrator")

    def _shape(self) -> Iterator[MetadataRecord]:
        """All topics, spread over the brokers."""
        brokers = list(self.world.hosts)
        for turn, topic in enumerate(self.topics.values()):
            topic_id = UUID(int=turn + 1, version=4)
            flushed = topic.configs.get(FLUSH_MESSAGES) == FLUSHED_FIRST
            yield TopicCreated(topic.name, topic_id, flushed)
            for key, value in topic.configs.items():
                yield ConfigSet(TOPIC_CONFIG, topic.name, key, value)
            for index in range(topic.partitions):
                first = (turn + index) % len(brokers)
                replicas = tuple((brokers[first:] + brokers[:first])[: topic.replicas])
                yield PartitionChanged(topic_id, index, -1, 0, replicas, replicas, last_leader=replicas[0])

    def _client(self, plan: ClientPlan) -> Client:
        make: Callable[..., Client] = CLIENTS[plan.kind]
        places = [list(self.places())] if plan.kind == "consumer" else []
        return make(self, plan.name, *places, **plan.options)

    def new_client_number(self) -> int:
        """Clients are known to the network by numbers that no broker has."""
        self._client_numbers += 1
        return self._client_numbers

    # ---------------------------------------------------------------------------------------- looking

    def places(self) -> Iterator[Place]:
        """All partitions of the case's own topics."""
        for topic in self.case.topics:
            for index in range(self.topics[topic.name].partitions):
                yield topic.name, index

    def assignment(self, place: Place) -> PartitionChanged:
        """What the journal says of a partition."""
        return self.world.journal.image.topics[place[0]].partitions[place[1]]

    def replicas(self, place: Place) -> Iterator[tuple[Host, Partition]]:
        """All replicas whose brokers live."""
        for host in self.world.hosts.values():
            if host.alive:
                partition = host.node.partitions.get(TopicPartition(*place))
                if partition is not None:
                    yield host, partition

    def leader(self, place: Place) -> Partition | None:
        """The replica that leads by the journal's word, if its broker lives and knows."""
        leader = self.assignment(place).leader
        for host, partition in self.replicas(place):
            if host.node_id == leader and partition.is_leader:
                return partition
        return None

    def excuse(self, topic: str, why: str) -> None:
        """From now on a topic may lack what was acknowledged: more has failed than it is made to bear."""
        if topic not in self.excused:
            self.excused[topic] = why
            readings = (each for each in self.history.readings if each.place[0] == topic)
            self.read_before.update((each, len(each.polled)) for each in readings)

    def arm(self, fault: str, way: Way, *, lost: bool) -> None:
        """A fault waits for the next message on a way, which is lost or late: it comes to pass with that."""
        self._armed[way, lost] = fault

    def _struck(self, way: Way, lost: bool) -> None:
        fault = self._armed.pop((way, lost), None)
        if fault is not None:
            self.strikes(fault, *(number for number in way if number in self.world.hosts))

    def strikes(self, fault: str, *brokers: int) -> None:
        """A fault that has waited for its moment comes to pass."""
        self.injected[fault] = self.injected.get(fault, 0) + 1
        for look in self.on_strike:
            look(fault, brokers)

    def await_partition(self, place: Place, then: Callable[[], None]) -> None:
        """Call `then` when a topic has got a partition, if it ever does."""
        self._awaited.setdefault(place, []).append(then)

    def _decided(self, records: list[MetadataRecord]) -> None:
        """Something enters the journal."""
        for record in records:
            if isinstance(record, PartitionChanged):
                topic = self.world.journal.image.topics_by_id[record.topic_id]
                if record.partition < len(topic.partitions):
                    self._excuse_if_unclean(topic.name, topic.partitions[record.partition], record)
                else:
                    place = (topic.name, record.partition)
                    self.world.after(0, lambda place=place: self._has_grown(place))  # type: ignore[misc]

    def _excuse_if_unclean(self, topic: str, before: PartitionChanged, now: PartitionChanged) -> None:
        """Excuse a topic of which somebody leads who need not have everything, where that may be."""
        configs = self.topics[topic].configs
        if now.leader in (NOBODY, before.leader):
            return
        if configs.get(UNCLEAN) != "true" and not self.admin.lets_anybody_lead((topic, now.partition)):
            return
        comes_without = not self.world.hosts[now.leader].keeps_all and FLUSH_MESSAGES not in configs
        if comes_without or now.leader not in (*before.isr, *before.eligible):
            self.excuse(topic, f"broker {now.leader} was elected uncleanly")

    def _has_grown(self, place: Place) -> None:
        """A topic has got a partition: those who read all of it read that, too."""
        topic, index = place
        self.topics[topic] = replace(self.topics[topic], partitions=index + 1)
        for client in self.clients.values():
            if type(client) is Consumer:
                client.read(place)
        for then in self._awaited.pop(place, ()):
            then()

    # ---------------------------------------------------------------------------------------- playing

    def _stepped(self, node_id: int) -> None:
        """Find what a step has changed: mostly nothing, so numbers are compared before anything is made."""
        host, known = self.world.hosts[node_id], self._known
        for place, partition in host.node.partitions.items():
            log = partition.log
            watermark, end, start, epoch, leader = known.get(partition, NEVER_SEEN)
            if (
                partition.high_watermark != watermark
                or log.end_offset != end
                or log.start_offset != start
                or partition.leader_epoch != epoch
                or partition.leader != leader
            ):
                known[partition] = (
                    partition.high_watermark,
                    log.end_offset,
                    log.start_offset,
                    partition.leader_epoch,
                    partition.leader,
                )
                self._has_changed(host, place, partition)

    def _has_changed(self, host: Host, place: Place, partition: Partition) -> None:
        start = partition.log.start_offset
        if start and RETENTION_MS in self.topics[place[0]].configs:
            self.history.expired[place] = max(start, self.history.expired.get(place, 0))
        for look in self.on_change:
            look(host, place, partition)

    def play(self, perform: Callable[[Scene, Step], None]) -> None:
        """Let everything happen, then let all faults end, and wait until all is well."""
        start_ms = self.world.now_ms
        for step in self.case.steps:
            self.world.agenda.at(start_ms + step.at_ms, lambda step=step: perform(self, step))  # type: ignore[misc]
        last_ms = max((step.at_ms for step in self.case.steps), default=0)
        self.world.run(last_ms + LOOK_EVERY_MS)
        self.end_faults()
        self.settled = self._settle()

    def end_faults(self) -> None:
        """Everything works again."""
        self.history.say("everything", "works again: no more faults")
        world = self.world
        world.heal()
        self.disk_delay_ms.clear()
        for node_id, held in list(world.journal.held.items()):
            if held:
                world.journal.release(node_id)
        for host in world.hosts.values():
            if host.paused:
                world.resume(host.node_id)
            if host.alive and host.node_id in self.broken_disks:
                world.crash(host.node_id)
            if not host.alive:
                world.start(host.node_id)
        self.broken_disks.clear()

    def _settle(self) -> bool:
        end_ms = self.world.now_ms + SETTLE_LIMIT_MS
        while self.world.now_ms < end_ms:
            self.world.run(LOOK_EVERY_MS)
            if not any(self.what_is_left()):
                return True
        return False

    def what_is_left(self) -> Iterator[str]:
        """What is not well yet."""
        for client in (*self.clients.values(), self.admin):
            yield from client.what_is_left()
        for place in (*self.places(), (TRANSACTION_STATE, 0), (CONSUMER_OFFSETS, 0)):
            yield from self._left_in(place)

    def _left_in(self, place: Place) -> Iterator[str]:
        name = f"{place[0]}-{place[1]}"
        assignment = self.assignment(place)
        leader = self.leader(place)
        if leader is None:
            yield f"nobody leads {name}"
            return
        if len(assignment.isr) < len(assignment.replicas):
            yield f"of {name} only {assignment.isr} of {assignment.replicas} are in sync"
        end = leader.log.end_offset
        for host, replica in self.replicas(place):
            if (replica.high_watermark, replica.log.end_offset) != (end, end):
                yield f"broker {host.node_id} has {name} up to {replica.high_watermark} of {end}"
        if place[0] in self.excused:
            return  # the marker that ended a transaction may be among what was lost: nobody writes it again
        if leader.last_stable_offset < end:
            yield f"a transaction is open in {name} at {leader.last_stable_offset}"
