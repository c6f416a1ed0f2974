"""What an administrator does while everybody works: as hard on a cluster as any fault.

A change that makes a topic promise less is noted in the scene at once, so that what is lost later is judged
by the least that the topic has promised.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gapless.simulator.actions import write_to
from gapless.simulator.case import RETENTION_MS, Case
from gapless.simulator.faults.fault import Arguments, a_while, fault, some_place
from gapless.simulator.history import Place
from gapless.simulator.scene import Scene

WRITTEN_AFTER_MS = (0, 300, 1_000)
NEVER_FLUSHED = "9223372036854775807"


# -------------------------------------------------------------------------------------------- partitions


def _choose_move(random: Random, case: Case) -> Arguments:
    place = some_place(random, case)
    replicas = next(topic.replicas for topic in case.topics if topic.name == place[0])
    target = random.sample(range(1, case.brokers + 1), replicas)
    return (*place, tuple(target), a_while(random, 1_000) if random.random() < 0.3 else 0)


@fault("reassign", "a partition is moved to other brokers; sometimes that is called off again", _choose_move)
def reassign(scene: Scene, topic: str, partition: int, replicas: tuple[int, ...], called_off_ms: int) -> bool:
    """See its meaning."""
    place = (topic, partition)
    scene.history.say("the administrator", f"moves {topic}-{partition} to brokers {list(replicas)}")
    scene.admin.move(place, replicas)
    if called_off_ms:
        scene.history.say("the administrator", f"will call that off in {called_off_ms} ms")
        scene.world.after(called_off_ms, lambda: scene.admin.move(place, None))
    return True


def _choose_growing(random: Random, case: Case) -> Arguments:
    by_hand = [client.options["topic"] for client in case.clients if "by-hand" in client.options.values()]
    topics = [topic.name for topic in case.topics if topic.name not in by_hand]
    writers = [client.name for client in case.clients if client.kind in ("producer", "transactional")]
    return random.choice(topics), random.choice(writers), random.randint(1, 5)


@fault("add-partition", "a topic gets one partition more, and a producer writes to it", _choose_growing)
def add_partition(scene: Scene, topic: str, client: str, count: int) -> bool:
    """See its meaning. Who takes partitions by hand would not hear of it, and is spared."""
    index = len(scene.world.journal.image.topics[topic].partitions)
    scene.history.say("the administrator", f"gives {topic} partition {index}")
    scene.await_partition((topic, index), lambda: _write_there(scene, client, (topic, index), count))
    scene.admin.add_partition(topic, index + 1)
    return True


def _write_there(scene: Scene, client: str, place: Place, count: int) -> None:
    for after_ms in WRITTEN_AFTER_MS:
        scene.world.after(after_ms, lambda: write_to(scene, client, place, count))


@fault("preferred-election", "all partitions are given back to their first replicas", lambda random, case: ())
def preferred_election(scene: Scene) -> bool:
    """See its meaning."""
    scene.history.say("the administrator", "gives all partitions back to their first replicas")
    scene.admin.elect_preferred()
    return True


@fault(
    "unclean-election",
    "a partition that nobody leads is given to anybody, whatever that one has",
    some_place,
)
def unclean_election(scene: Scene, topic: str, partition: int) -> bool:
    """See its meaning. What the topic loses by such an election, it loses by rights."""
    place = (topic, partition)
    if scene.assignment(place).leader > 0:
        return False
    scene.history.say("the administrator", f"lets anybody lead {topic}-{partition}")
    scene.admin.elect_anybody(place)
    return True


# ---------------------------------------------------------------------------------------------- settings


def _choose_floor(random: Random, case: Case) -> Arguments:
    topic = random.choice(case.topics)
    return topic.name, random.randint(1, topic.replicas)


@fault("change-floor", "a topic's min.insync.replicas is changed", _choose_floor)
def change_floor(scene: Scene, topic: str, floor: int) -> bool:
    """See its meaning."""
    scene.history.say("the administrator", f"sets min.insync.replicas of {topic} to {floor}")
    plan = scene.topics[topic]
    if floor < int(plan.configs.get("min.insync.replicas", "1")):
        scene.topics[topic] = replace(plan, configs={**plan.configs, "min.insync.replicas": str(floor)})
    scene.admin.configure(topic, "min.insync.replicas", str(floor))
    return True


@fault(
    "change-flush",
    "a topic is flushed before anything is acknowledged from now on, or no more",
    lambda random, case: (random.choice(case.topics).name, random.random() < 0.5),
)
def change_flush(scene: Scene, topic: str, flushed: bool) -> bool:
    """See its meaning."""
    scene.history.say("the administrator", f"has {topic} {'' if flushed else 'no more '}flushed at once")
    if not flushed:
        plan = scene.topics[topic]
        kept = {key: value for key, value in plan.configs.items() if key != "flush.messages"}
        scene.topics[topic] = replace(plan, configs=kept)
    scene.admin.configure(topic, "flush.messages", "1" if flushed else NEVER_FLUSHED)
    return True


@fault(
    "change-retention",
    "a topic's records are deleted when they are so old; or no more",
    lambda random, case: (random.choice(case.topics).name, random.choice((-1, a_while(random, 5_000)))),
)
def change_retention(scene: Scene, topic: str, old_ms: int) -> bool:
    """See its meaning."""
    kept = f"for {old_ms} ms" if old_ms >= 0 else "for good"
    scene.history.say("the administrator", f"has records of {topic} kept {kept}")
    plan = scene.topics[topic]
    least_ms = int(plan.configs.get(RETENTION_MS, str(old_ms)))
    if old_ms >= 0:
        configs = {**plan.configs, RETENTION_MS: str(min(old_ms, least_ms))}
        scene.topics[topic] = replace(plan, configs=configs)
    scene.admin.configure(topic, RETENTION_MS, str(old_ms))
    return True


# ----------------------------------------------------------------------------------------------- records


@fault(
    "delete-records",
    "the first part of a partition is deleted, as retention would do",
    lambda random, case: (*some_place(random, case), random.choice((20, 50, 90, 100))),
)
def delete_records(scene: Scene, topic: str, partition: int, percent: int) -> bool:
    """See its meaning."""
    place = (topic, partition)
    leader = scene.leader(place)
    before = 0 if leader is None else leader.high_watermark * percent // 100
    if not before:
        return False
    scene.history.say("the administrator", f"deletes {topic}-{partition} below {before}")
    scene.history.deletes(place, before)
    scene.admin.delete_records(place, before)
    return True
