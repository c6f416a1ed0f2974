"""Leadership that changes fast, as an impatient controller or administrator may make it."""

from __future__ import annotations

from dataclasses import replace

from gapless.core.membership.elections import NOBODY, sealed
from gapless.simulator.faults.fault import a_while, fault, later, some_place
from gapless.simulator.history import Place
from gapless.simulator.scene import Scene

DEAF_AFTER_MS = 300
"""How long after all is as before the one who has not heard of it stays so."""


@fault(
    "to-and-fro",
    "another replica in sync is made the leader, and soon the first one again; one replica hears of neither",
    lambda random, case: (*some_place(random, case), a_while(random, 500), random.random() < 0.5),
)
def to_and_fro(scene: Scene, topic: str, partition: int, back_ms: int, leader_is_deaf: bool) -> bool:
    """See its meaning."""
    place = (topic, partition)
    assignment = scene.assignment(place)
    first = assignment.leader
    others = [each for each in assignment.isr if each != first and scene.world.hosts[each].alive]
    if first == NOBODY or len(others) < 2:
        return False
    deaf = first if leader_is_deaf else others[1]
    scene.history.say(f"broker {deaf}", "hears nothing from the coordination service")
    scene.world.journal.held[deaf] = True
    later(scene, back_ms + DEAF_AFTER_MS, lambda: scene.world.journal.release(deaf))
    _lead(scene, place, others[0])
    later(scene, back_ms, lambda: _lead(scene, place, first))
    return True


def _lead(scene: Scene, place: Place, leader: int) -> None:
    """Make somebody the leader, if it may be."""
    before = scene.assignment(place)
    if leader in before.isr and scene.world.hosts[leader].alive:
        record = sealed(before, replace(before, leader=leader, last_leader=NOBODY))
        if record is not None:
            scene.history.say("the controller", f"makes broker {leader} lead {place[0]}-{place[1]}")
            scene.world.append(record)
