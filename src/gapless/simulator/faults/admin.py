"""What an administrator does while everybody works: as hard on a cluster as any fault.

A change that makes a topic promise less is noted in the scene at once, so that what is lost later is judged
by the least that the topic has promised.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from gapless.simulator.case import Case
from gapless.simulator.faults.fault import Arguments, a_while, fault, some_place
from gapless.simulator.scene import Scene

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


@fault("preferred-election", "all partitions are given back to their first replicas", lambda random, case: ())
def preferred_election(scene: Scene) -> bool:
    """See its meaning."""
    scene.history.say("the administrator", "gives all partitions back to their first replicas")
    scene.admin.elect_preferred()
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
