"""Disks, clocks, and the way to the coordination service."""

from __future__ import annotations

from random import Random

from gapless.simulator.case import Case
from gapless.simulator.faults.brokers import start_again
from gapless.simulator.faults.fault import Arguments, a_while, fault, later, resolve, some_broker
from gapless.simulator.scene import Scene

MOST_WRONG_MS = 500_000


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
    scene.history.say(f"broker {node_id}", f"has a disk that takes {delay_ms} ms to flush, for {for_ms} ms")
    scene.disk_delay_ms[node_id] = delay_ms
    later(scene, for_ms, lambda: scene.disk_delay_ms.pop(node_id, None))
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
            start_again(scene, node_id)

    later(scene, for_ms, replace_disk)
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
    scene.history.say(f"broker {node_id}", f"does not reach the coordination service for {for_ms} ms")
    scene.world.journal.held[node_id] = True
    later(scene, for_ms, lambda: scene.world.journal.release(node_id))
    return True


def _choose_wrong_clock(random: Random, case: Case) -> Arguments:
    return random.randint(1, case.brokers), random.choice((-1, 1)) * a_while(random, MOST_WRONG_MS)


@fault(
    "wrong-clock",
    "a broker is started again, and its clock is far behind or ahead from then on",
    _choose_wrong_clock,
)
def wrong_clock(scene: Scene, node_id: int, ahead_ms: int) -> bool:
    """See its meaning. Within one life a broker's clock never goes back, whatever the machine's does."""
    host = scene.world.hosts[node_id]
    if not host.alive:
        return False
    text = (
        f"is started again, with a clock that is {abs(ahead_ms)} ms {'ahead' if ahead_ms > 0 else 'behind'}"
    )
    scene.history.say(f"broker {node_id}", text)
    scene.world.crash(node_id)
    host.clock_ahead_ms = ahead_ms
    start_again(scene, node_id)
    return True
