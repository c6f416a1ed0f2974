"""All that can go wrong. Each fault is a named option with a rate; what it hits is chosen with the case.

A broker is given by its number, or by a role that is looked up when the fault happens: `leader t 0`,
`follower t 0`, `controller`. A fault that takes more than a topic is made to bear excuses that topic: what it
loses then, it loses by rights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from gapless.core.contract import BrokerDied
from gapless.core.records import MetadataRecord, PartitionChanged
from gapless.simulator.case import Case
from gapless.simulator.scene import Scene

Arguments = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault: how it is chosen, and what it does."""

    name: str
    meaning: str
    choose: Callable[[Random, Case], Arguments]
    inject: Callable[..., bool]
    """Called with the scene and the arguments; whether it came to pass."""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, meaning: str, choose: Callable[[Random, Case], Arguments]
) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Register a fault."""

    def register(inject: Callable[..., bool]) -> Callable[..., bool]:
        FAULTS[name] = Fault(name, meaning, choose, inject)
        return inject

    return register


# ------------------------------------------------------------------------------------------- choosing


def some_broker(random: Random, case: Case) -> str | int:
    """A number or a role: those who lead are hit more often than chance would have it."""
    chance = random.random()
    if chance < 0.4:
        return random.randint(1, case.brokers)
    topic = random.choice(case.topics)
    place = f"{topic.name} {random.randrange(topic.partitions)}"
    if chance < 0.75:
        return f"leader {place}"
    return f"follower {place}" if chance < 0.9 else random.choice(("controller", "coordinator"))


def some_place(random: Random, case: Case) -> tuple[str, int]:
    """A partition."""
    topic = random.choice(case.topics)
    return topic.name, random.randrange(topic.partitions)


def two_brokers(random: Random, case: Case) -> tuple[int, int]:
    """Two different ones."""
    first, second = random.sample(range(1, case.brokers + 1), 2)
    return first, second


def a_while(random: Random, longest_ms: int = 3_000) -> int:
    """Short times are as likely as long ones."""
    return int(10 * (longest_ms / 10) ** random.random())


def some_client(random: Random, case: Case) -> str:
    return random.choice(case.clients).name


def resolve(scene: Scene, who: str | int) -> int | None:
    """The broker that is meant; None if there is none now."""
    if isinstance(who, int):
        return who if who in scene.world.hosts else None
    role, *place = who.split()
    if role == "controller":
        controller = scene.world.journal.image.controller.node_id
        return controller if controller > 0 else None
    where = ("__transaction_state", 0) if role == "coordinator" else (place[0], int(place[1]))
    assignment = scene.assignment(where)
    if role in ("leader", "coordinator"):
        return assignment.leader if assignment.leader > 0 else None
    followers = [node_id for node_id in assignment.replicas if node_id != assignment.leader]
    return followers[0] if followers else None


def _later(scene: Scene, ms: int, undo: Callable[[], object]) -> None:
    scene.world.after(ms, undo)


# ------------------------------------------------------------------------------------- lives of brokers


@fault(
    "crash",
    "a broker is killed with SIGKILL and starts again; what it wrote stays in the page cache",
    lambda random, case: (some_broker(random, case), a_while(random)),
)
def crash(scene: Scene, who: str | int, down_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None or not scene.world.hosts[node_id].alive:
        return False
    scene.history.say(f"broker {node_id}", "is killed")
    scene.world.crash(node_id)
    _later(scene, down_ms, lambda: _start(scene, node_id))
    return True


def _start(scene: Scene, node_id: int) -> None:
    if not scene.world.hosts[node_id].alive:
        scene.history.say(f"broker {node_id}", "starts again")
        scene.world.start(node_id)


@fault(
    "crash-elected",
    "whoever is elected next to lead a partition is killed moments later",
    lambda random, case: (*some_place(random, case), a_while(random, 300), a_while(random)),
)
def crash_elected(scene: Scene, topic: str, partition: int, after_ms: int, down_ms: int) -> bool:
    """See its meaning."""
    assignment = scene.assignment((topic, partition))
    look_on = scene.world.journal.on_entry

    def look(records: list[MetadataRecord]) -> None:
        for record in records:
            if isinstance(record, PartitionChanged) and is_elected(record):
                _later(scene, after_ms, partial(crash, scene, record.leader, down_ms))
                look_on.remove(look)
                return

    def is_elected(record: PartitionChanged) -> bool:
        same = (record.topic_id, record.partition) == (assignment.topic_id, assignment.partition)
        return same and record.leader > 0 and record.leader_epoch > assignment.leader_epoch

    look_on.append(look)
    return True


@fault(
    "power-cut",
    "a machine loses its power: what was not flushed is gone, or a part of it",
    lambda random, case: (some_broker(random, case), a_while(random), random.choice((0, 0, 50, 90))),
)
def power_cut(scene: Scene, who: str | int, down_ms: int, kept_percent: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None or not scene.world.hosts[node_id].alive:
        return False
    host = scene.world.hosts[node_id]
    for name in host.store.logs:
        if not _bears_a_power_cut(scene, name, node_id):
            if scene.topics[name[0]].name.startswith("__"):
                return False
            scene.excuse(name[0], f"the power of broker {node_id} was cut, and too few others had everything")
    kept = {
        name: log.flushed_offset + (log.end_offset - log.flushed_offset) * kept_percent // 100
        for name, log in host.store.logs.items()
    }
    scene.history.say(f"broker {node_id}", "loses its power")
    scene.world.power_cut(node_id, kept=kept)
    _later(scene, down_ms, lambda: _start(scene, node_id))
    return True


def _bears_a_power_cut(scene: Scene, place: tuple[str, int], node_id: int) -> bool:
    """Whether it is on disk, or somebody else certainly has all that was committed.

    Who is in sync has it, and so has who is eligible, dead or alive: what a process wrote outlives it, though
    not a power cut.
    """
    if scene.topics[place[0]].configs.get("flush.messages") == "1":
        return True
    assignment, hosts = scene.assignment(place), scene.world.hosts
    return any(
        each != node_id and hosts[each].keeps_all and each not in scene.broken_disks
        for each in (*assignment.isr, *assignment.eligible)
    )


@fault(
    "pause",
    "a broker's process stands still (SIGSTOP, a stalled machine), and goes on later as if nothing had been",
    lambda random, case: (some_broker(random, case), a_while(random)),
)
def pause(scene: Scene, who: str | int, for_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    host = None if node_id is None else scene.world.hosts[node_id]
    if node_id is None or host is None or not host.alive or host.paused:
        return False
    scene.history.say(f"broker {node_id}", "stands still")
    scene.world.pause(node_id)
    life = host.life

    def go_on() -> None:
        if host.life == life and host.alive and host.paused:
            scene.history.say(f"broker {node_id}", "goes on")
            scene.world.resume(node_id)

    _later(scene, for_ms, go_on)
    return True


@fault(
    "session-expiry",
    "the coordination service ends a broker's session while it runs; it finds out a little later, and exits",
    lambda random, case: (some_broker(random, case), a_while(random, 300), a_while(random, 1_000)),
)
def session_expiry(scene: Scene, who: str | int, unaware_ms: int, down_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None or not scene.world.hosts[node_id].alive:
        return False
    host = scene.world.hosts[node_id]
    registered = host.node.image.brokers.get(node_id)
    if registered is None:
        return False
    scene.history.say(f"broker {node_id}", "loses its session, and does not know it yet")
    died = BrokerDied(node_id, registered.epoch)
    for other in scene.world.hosts.values():
        if other.alive and other is not host:
            scene.world.deliver(other, other.life, died)
    life = host.life

    def exits() -> None:
        if host.alive and host.life == life:
            scene.history.say(f"broker {node_id}", "finds that its session has ended, and exits")
            scene.world.crash(node_id)
            _later(scene, down_ms, lambda: _start(scene, node_id))

    _later(scene, unaware_ms, exits)
    return True


# ------------------------------------------------------------------------------------------- the network


@fault(
    "partition",
    "two brokers do not reach each other",
    lambda random, case: (*two_brokers(random, case), a_while(random)),
)
def partition(scene: Scene, one: int, other: int, for_ms: int) -> bool:
    """See its meaning."""
    scene.history.say("the network", f"is cut between brokers {one} and {other}")
    scene.world.cut(one, other)
    _later(scene, for_ms, lambda: _reconnect(scene, one, other))
    return True


@fault(
    "one-way",
    "nothing arrives from one broker at another, while the other direction works",
    lambda random, case: (*two_brokers(random, case), a_while(random)),
)
def one_way(scene: Scene, source: int, target: int, for_ms: int) -> bool:
    """See its meaning."""
    scene.history.say("the network", f"carries nothing from broker {source} to broker {target}")
    scene.world.network.block(source, target)
    _later(scene, for_ms, lambda: scene.world.network.open(source, target))
    return True


@fault(
    "isolate",
    "a broker reaches no other broker; clients and the coordination service reach it",
    lambda random, case: (some_broker(random, case), a_while(random)),
)
def isolate(scene: Scene, who: str | int, for_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None:
        return False
    scene.history.say("the network", f"is cut between broker {node_id} and all others")
    scene.world.isolate(node_id)

    def undo() -> None:
        for other in scene.world.hosts:
            if other != node_id:
                _reconnect(scene, node_id, other)

    _later(scene, for_ms, undo)
    return True


def _reconnect(scene: Scene, one: int, other: int) -> None:
    scene.world.network.open(one, other)
    scene.world.network.open(other, one)


@fault(
    "slow-way",
    "messages from one broker to another are delayed, so that those of other connections overtake them",
    lambda random, case: (*two_brokers(random, case), a_while(random, 500), a_while(random)),
)
def slow_way(scene: Scene, source: int, target: int, delay_ms: int, for_ms: int) -> bool:
    """See its meaning."""
    scene.history.say("the network", f"takes {delay_ms} ms longer from broker {source} to broker {target}")
    ways = scene.world.network.slower_ms
    ways[source, target] = delay_ms
    _later(scene, for_ms, lambda: ways.pop((source, target), None))
    return True


@fault(
    "lose-message",
    "a message between brokers is lost: its connection is stuck until somebody gives up",
    two_brokers,
)
def lose_message(scene: Scene, source: int, target: int) -> bool:
    """See its meaning."""
    scene.history.say("the network", f"loses the next message from broker {source} to broker {target}")
    scene.world.network.losing[source, target] = 1
    return True


@fault(
    "lose-answer",
    "a client does not get its answer, and must send again without knowing",
    lambda random, case: (some_client(random, case), some_broker(random, case)),
)
def lose_answer(scene: Scene, client: str, who: str | int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None:
        return False
    scene.history.say("the network", f"loses the next answer of broker {node_id} to {client}")
    scene.world.network.losing[node_id, scene.clients[client].number] = 1
    return True


@fault(
    "late-request",
    "a client's request is stranded: it is sent again over a new connection, and the first one arrives late",
    lambda random, case: (some_client(random, case), some_broker(random, case), a_while(random, 6_000)),
)
def late_request(scene: Scene, client: str, who: str | int, late_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None:
        return False
    scene.history.say(
        "the network", f"delays the next request of {client} to broker {node_id} by {late_ms} ms"
    )
    scene.world.network.stranding[scene.clients[client].number, node_id] = late_ms
    return True


@fault(
    "client-partition",
    "a client does not reach a broker; what it sends is held and arrives later",
    lambda random, case: (some_client(random, case), some_broker(random, case), a_while(random)),
)
def client_partition(scene: Scene, client: str, who: str | int, for_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None:
        return False
    number = scene.clients[client].number
    scene.history.say("the network", f"is cut between {client} and broker {node_id}")
    scene.world.cut(number, node_id)
    _later(scene, for_ms, lambda: _reconnect(scene, number, node_id))
    return True


# --------------------------------------------------------------------------- disks, clocks, coordination


@fault(
    "slow-disk",
    "a broker's flushes take long",
    lambda random, case: (some_broker(random, case), a_while(random, 1_000), a_while(random)),
)
def slow_disk(scene: Scene, who: str | int, delay_ms: int, for_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None:
        return False
    scene.history.say(f"broker {node_id}", f"has a disk that takes {delay_ms} ms to flush")
    scene.disk_delay_ms[node_id] = delay_ms
    _later(scene, for_ms, lambda: scene.disk_delay_ms.pop(node_id, None))
    return True


@fault(
    "disk-error",
    "a broker cannot write a log any more, until it is started again",
    lambda random, case: (some_broker(random, case), a_while(random)),
)
def disk_error(scene: Scene, who: str | int, for_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None or not scene.world.hosts[node_id].alive or scene.broken_disks:
        return False
    host = scene.world.hosts[node_id]
    logs = list(host.store.logs.values())
    if not logs:
        return False
    scene.history.say(f"broker {node_id}", "has a disk that takes no more writes")
    scene.broken_disks[node_id] = None
    for log in logs:
        log.failure = "the disk is broken"
    life = host.life

    def replace_disk() -> None:
        scene.broken_disks.pop(node_id, None)
        if host.alive and host.life == life:
            scene.world.crash(node_id)
            _start(scene, node_id)

    _later(scene, for_ms, replace_disk)
    return True


@fault(
    "clock",
    "a broker's clock jumps ahead",
    lambda random, case: (some_broker(random, case), a_while(random, 5_000)),
)
def clock(scene: Scene, who: str | int, ahead_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None:
        return False
    scene.history.say(f"broker {node_id}", f"has a clock that jumps {ahead_ms} ms ahead")
    scene.world.hosts[node_id].clock_ahead_ms += ahead_ms
    return True


@fault(
    "coordination-away",
    "a broker does not reach the coordination service",
    lambda random, case: (some_broker(random, case), a_while(random)),
)
def coordination_away(scene: Scene, who: str | int, for_ms: int) -> bool:
    """See its meaning."""
    node_id = resolve(scene, who)
    if node_id is None or not scene.world.hosts[node_id].alive:
        return False
    scene.history.say(f"broker {node_id}", "does not reach the coordination service")
    scene.world.journal.held[node_id] = True
    _later(scene, for_ms, lambda: scene.world.journal.release(node_id))
    return True
