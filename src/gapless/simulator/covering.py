"""Counting what a run exercises, by looking at the journal, at answers and at logs. It must cost little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from gapless.core.contract import Call, Reply, Request
from gapless.core.coordinators import INTERNAL_TOPICS
from gapless.core.partition import Partition
from gapless.core.records import (
    BrokerRegistered,
    ConfigSet,
    ControllerElected,
    MetadataRecord,
    PartitionChanged,
)
from gapless.simulator.arguments import brokers_of
from gapless.simulator.case import Step
from gapless.simulator.coverage import Coverage
from gapless.simulator.faults import FAULTS, resolve
from gapless.simulator.history import Place
from gapless.simulator.scene import TOPIC_CONFIG, Scene
from gapless.simulator.watching import Watcher
from gapless.simulator.world import Host, World
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode

FLOOR = "min.insync.replicas"
_PRODUCE, _FETCH, _VERSIONS = int(ApiKey.PRODUCE), int(ApiKey.FETCH), int(ApiKey.API_VERSIONS)
_INIT, _END = int(ApiKey.INIT_PRODUCER_ID), int(ApiKey.END_TXN)
_MARKERS, _JOIN = int(ApiKey.WRITE_TXN_MARKERS), int(ApiKey.JOIN_GROUP)


class Covering(Watcher):
    """Counts into `coverage`, over one run after another."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self._seen = coverage.seen
        self._handlers: dict[type, Callable[[int, Any], None]] = {
            Reply: self._replied,
            Request: self._asked,
            Call: self._called,
        }

    def enter(self, world: World) -> None:
        self._world = world
        self._shapes: dict[tuple[UUID, int], PartitionChanged] = {}
        self._floors: dict[UUID, int] = {}
        self._ends: dict[tuple[int, int, Place], tuple[int, int]] = {}
        self._stored_in: dict[tuple[int, int, Place, int], int] = {}
        self._asked_in: dict[Request, int] = {}
        """The steps in which batches were stored, by their offsets, and in which requests came."""
        self._endings: dict[int, None] = {}
        """Producer ids that were asked to abort, or whose successor has come."""
        self._ids: dict[str, int] = {}
        self._cleaned: dict[tuple[int, str], int] = {}
        self._generations: dict[str, int] = {}

    def begin(self, scene: Scene) -> None:
        self._scene = scene
        for topic_id, topic in scene.world.journal.image.topics_by_id.items():
            self._floors[topic_id] = int(scene.topics[topic.name].configs.get(FLOOR, "1"))
            self._shapes |= {(topic_id, shape.partition): shape for shape in topic.partitions}
        scene.world.journal.on_entry.append(self._decided)
        scene.world.on_event = self._happened
        scene.on_change.append(self._changed)
        scene.on_strike.append(self._struck)

    def _count(self, what: str) -> None:
        self._seen[what] += 1

    # ------------------------------------------------------------------------------- faults and roles

    def before(self, step: Step) -> None:
        self._roles: list[str] = []
        if step.what in FAULTS:
            hit = (resolve(self._scene, who) for who in brokers_of(step).values())
            self._roles = list(dict.fromkeys(role for broker in hit for role in self._roles_of(broker)))

    def after(self, step: Step, came_to_pass: bool) -> None:
        if came_to_pass:
            for role in self._roles:
                self.coverage.hits[step.what, role] += 1
        if self._scene.case.internal:
            self._look_for_compaction()

    def _struck(self, fault: str, brokers: tuple[int, ...]) -> None:
        for role in dict.fromkeys(role for broker in brokers for role in self._roles_of(broker)):
            self.coverage.hits[fault, role] += 1

    def _look_for_compaction(self) -> None:
        for host in self._world.hosts.values():
            for name in INTERNAL_TOPICS:
                log = host.store.logs.get((name, 0))
                if log is not None and log.cleaned_offset > self._cleaned.get((host.node_id, name), 0):
                    self._cleaned[host.node_id, name] = log.cleaned_offset
                    self._count("log: compacted")

    def _roles_of(self, broker: int | None) -> Iterator[str]:
        """Everything that a broker is at this moment."""
        image = self._world.journal.image
        roles = ["controller"] if image.controller.node_id == broker else []
        for name, topic in image.topics.items():
            own = name not in INTERNAL_TOPICS
            for shape in topic.partitions:
                if shape.leader == broker:
                    roles.append("leader" if own else "coordinator")
                elif own and broker in shape.replicas:
                    roles.append("follower")
        yield from roles or ["bystander"]

    # --------------------------------------------------------------------------------------- the journal

    def _decided(self, records: list[MetadataRecord]) -> None:
        for record in records:
            match record:
                case PartitionChanged():
                    key = (record.topic_id, record.partition)
                    before = self._shapes.get(key)
                    self._shapes[key] = record
                    if before is None:
                        self._count("partition: added")
                    else:
                        self._reshaped(before, record)
                case BrokerRegistered():
                    self._count("broker: fenced" if record.fenced else "broker: registers anew")
                case ControllerElected():
                    self._count("controller: fails over")
                case ConfigSet():
                    self._count("setting: changed")
                    self._changes_floor(record)

    def _changes_floor(self, record: ConfigSet) -> None:
        topic = self._world.journal.image.topics.get(record.resource_name)
        if topic is not None and (record.resource_type, record.key) == (TOPIC_CONFIG, FLOOR):
            self._floors[topic.topic_id] = int(record.value or 1)

    def _reshaped(self, before: PartitionChanged, now: PartitionChanged) -> None:
        if now.leader_epoch != before.leader_epoch:
            self._count(f"leader: {_by_what_right(before, now)}")
        if len(now.isr) < len(before.isr):
            self._count("in sync: fewer")
        elif len(now.isr) > len(before.isr):
            self._count("in sync: more")
        if now.leader > 0 and len(now.isr) < min(self._floors.get(now.topic_id, 1), len(now.replicas)):
            self._count("in sync: below the floor")
        if now.eligible and not before.eligible:
            self._count("in sync: eligible replicas kept")
        if now.adding and not before.adding:
            self._count("reassignment: begins")
        if (before.adding or before.removing) and not (now.adding or now.removing):
            self._count("reassignment: ends")

    # ---------------------------------------------------------------------------------------------- logs

    def _changed(self, host: Host, place: Place, replica: Partition) -> None:
        key = (host.node_id, host.life, place)
        start, end = self._ends.get(key, (0, 0))
        log = replica.log
        if log.start_offset > start and key in self._ends:
            asked_for = log.start_offset <= self._scene.history.deleted.get(place, 0)
            self._count("log: records deleted" if asked_for else "log: records expired")
        if log.end_offset < end:
            self._count("log: cut where it differs from the leader's")
        elif log.end_offset > end:
            self._stored_in[*key, end] = self._world.steps
        self._ends[key] = (log.start_offset, log.end_offset)

    # ------------------------------------------------------------------------------------ requests, answers

    def _happened(self, node_id: int, what: Any) -> None:
        handler = self._handlers.get(type(what))
        if handler is not None:
            handler(node_id, what)

    def _asked(self, node_id: int, request: Request) -> None:
        key, body = request.header.api_key, request.body
        if key == _PRODUCE:
            self._asked_in[request] = self._world.steps
        elif key == _END and not body.committed:
            self._endings[body.producer_id] = None
        elif key == _INIT and body.transactional_id in self._ids:
            self._endings[self._ids[body.transactional_id]] = None

    def _replied(self, node_id: int, reply: Reply) -> None:
        key, message = reply.request.header.api_key, reply.message
        if key == _VERSIONS or message is None:
            return
        if key == _FETCH:
            self._fetched(reply.request.body.replica_id >= 0, message)
            return
        refused = False
        for error in _errors(key, message):
            if error:
                refused = True
                self._count(f"{ApiKey(key).name} {ErrorCode(error).name}")
        if key == _PRODUCE:
            asked_in = self._asked_in.pop(reply.request, 0)
            if not refused and self._was_there(node_id, asked_in, message):
                self._count("producer: duplicate recognised")
        elif key == _JOIN and not refused:
            self._joined(reply.request.body, message)
        elif key == _INIT and not refused and reply.request.body.transactional_id:
            self._ids[reply.request.body.transactional_id] = message.producer_id

    def _joined(self, body: Any, message: Any) -> None:
        before, generation = self._generations.get(body.group_id), message.generation_id
        self._generations[body.group_id] = generation
        if body.group_instance_id and not body.member_id and generation == before:
            self._count("group: a static member keeps its place")

    def _was_there(self, node_id: int, asked_in: int, message: Any) -> bool:
        """Whether the batch that is acknowledged was stored before it was sent this time."""
        result = message.topics[0].partitions[0]
        where = (node_id, self._world.hosts[node_id].life, (message.topics[0].name, result.partition))
        if where not in self._ends or result.base_offset >= self._ends[where][1]:
            return False  # it was stored in this very step
        return self._stored_in.get((*where, result.base_offset), 0) < asked_in

    def _fetched(self, by_a_follower: bool, message: Any) -> None:
        who = "follower" if by_a_follower else "consumer"
        if message.error:
            self._count(f"FETCH by a {who}: {ErrorCode(message.error).name}")
        for topic in message.topics:
            for result in topic.partitions:
                if result.error:
                    self._count(f"FETCH by a {who}: {ErrorCode(result.error).name}")
                if result.diverging_epoch is not None:
                    self._count("log: differs, and the leader says where")

    def _called(self, node_id: int, call: Call) -> None:
        if call.api_key != _MARKERS:
            return
        for marker in call.body.markers:
            if marker.transaction_result:
                self._count("transaction: committed")
            elif marker.producer_id in self._endings:
                self._count("transaction: aborted as asked")
            else:
                self._count("transaction: aborted by its timeout")


def _by_what_right(before: PartitionChanged, now: PartitionChanged) -> str:
    """Why the new leader leads."""
    if now.leader < 0:
        return "nobody"
    if now.leader == before.leader:
        return "the same in a new epoch"
    if now.leader in before.isr:
        return "in sync"
    if now.leader in before.eligible:
        return "eligible"
    return "the last one" if now.leader == before.last_leader else "unclean"


def _errors(key: int, message: Any) -> Iterator[int]:
    """The error codes of an answer, wherever this API has them."""
    if key == _PRODUCE:
        for topic in message.topics:
            for result in topic.partitions:
                yield result.error
        return
    yield _number(message, "error_code")
    for groups, parts, name in _NESTED.get(key, ()):
        for each in getattr(message, groups, None) or ():
            yield _number(each, "error_code")
            for part in (getattr(each, parts, None) or ()) if parts else ():
                yield _number(part, name)


def _number(message: Any, name: str) -> int:
    value = getattr(message, name, 0)
    return value if isinstance(value, int) else 0


_NESTED: dict[int, tuple[tuple[str, str, str], ...]] = {
    int(ApiKey.METADATA): (("topics", "partitions", "error_code"),),
    int(ApiKey.FIND_COORDINATOR): (("coordinators", "", ""),),
    int(ApiKey.ADD_PARTITIONS_TO_TXN): (
        ("results_by_topic_v3_and_below", "results_by_partition", "partition_error_code"),
    ),
    int(ApiKey.OFFSET_COMMIT): (("topics", "partitions", "error_code"),),
    int(ApiKey.TXN_OFFSET_COMMIT): (("topics", "partitions", "error_code"),),
    int(ApiKey.OFFSET_FETCH): (("groups", "", ""), ("topics", "partitions", "error_code")),
}
"""By API: the list in an answer, the list in each of its entries, and how that calls its error."""
