"""Brokers end, and stand still."""

from __future__ import annotations

from functools import partial
from random import Random

from gapless.core.contract import BrokerDied
from gapless.core.coordinators import INTERNAL_TOPICS
from gapless.core.records import MetadataRecord, PartitionChanged
from gapless.simulator.faults.fault import a_while, fault, later, resolve, some_broker, some_place
from gapless.simulator.scene import Scene


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
    later(scene, down_ms, lambda: start_again(scene, node_id))
    return True


def start_again(scene: Scene, node_id: int) -> None:
    """Begin a broker's next life, unless it has begun."""
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
                later(scene, after_ms, partial(strike, record.leader))
                look_on.remove(look)
                return

    def is_elected(record: PartitionChanged) -> bool:
        same = (record.topic_id, record.partition) == (assignment.topic_id, assignment.partition)
        return same and record.leader > 0 and record.leader_epoch > assignment.leader_epoch

    def strike(leader: int) -> None:
        if crash(scene, leader, down_ms):
            scene.strikes("crash-elected", leader)

    look_on.append(look)
    return False


@fault(
    "power-cut",
    "a machine loses its power: what was not flushed is gone, or a part of it",
    lambda random, case: (some_broker(random, case), a_while(random), random.choice((0, 0, 50, 90)), True),
)
def power_cut(
    scene: Scene, who: str | int, down_ms: int, kept_percent: int, each_apart: bool = False
) -> bool:
    """See its meaning. What coordinators must know is spared: it is decided first, and excused then.

    `each_apart`: of each log another part is kept.
    """
    node_id = resolve(scene, who)
    if node_id is None or not scene.world.hosts[node_id].alive:
        return False
    host = scene.world.hosts[node_id]
    lost = dict.fromkeys(
        place[0] for place in host.store.logs if not _bears_a_power_cut(scene, place, node_id)
    )
    if not INTERNAL_TOPICS.isdisjoint(lost):
        return False
    for topic in lost:
        scene.excuse(topic, f"the power of broker {node_id} was cut, and too few others had everything")
    when = f"{scene.case.seed} {scene.world.now_ms} {node_id}"
    kept = {}
    for name, log in host.store.logs.items():
        percent = _share(kept_percent, f"{when} {name[0]}-{name[1]}") if each_apart else kept_percent
        kept[name] = log.flushed_offset + (log.end_offset - log.flushed_offset) * percent // 100
    scene.history.say(f"broker {node_id}", "loses its power")
    scene.world.power_cut(node_id, kept=kept)
    later(scene, down_ms, lambda: start_again(scene, node_id))
    return True


def _share(percent: int, drawn_by: str) -> int:
    """How much of a log is kept. A system writes file by file: all of one is on disk, of another nothing.

    0 is the worst: nothing of any log.
    """
    return Random(drawn_by).choice((0, percent, percent, 100)) if percent else 0


def _bears_a_power_cut(scene: Scene, place: tuple[str, int], node_id: int) -> bool:
    """Whether it is on disk, or somebody else certainly has all that was committed, and counts.

    Who is in sync has it, and so has who is eligible, dead or alive: what a process wrote outlives it, though
    not a power cut. But who is in sync and does not serve leaves the set, and if that is still large enough
    then, its log does not count any more.
    """
    plan = scene.topics[place[0]]
    if plan.configs.get("flush.messages") == "1":
        return True
    assignment, hosts = scene.assignment(place), scene.world.hosts
    floor = min(int(plan.configs.get("min.insync.replicas", "1")), len(assignment.replicas))
    stays_eligible = len(assignment.isr) - 1 < floor
    counting = (each for each in assignment.isr if stays_eligible or hosts[each].serves)
    return any(
        each != node_id and hosts[each].keeps_all and each not in scene.broken_disks
        for each in (*counting, *assignment.eligible)
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

    later(scene, for_ms, go_on)
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
            later(scene, down_ms, lambda: start_again(scene, node_id))

    later(scene, unaware_ms, exits)
    return True
