"""What goes wrong between brokers."""

from __future__ import annotations

from gapless.simulator.faults.fault import a_while, fault, later, resolve, some_broker, two_brokers
from gapless.simulator.scene import Scene


@fault(
    "partition",
    "two brokers do not reach each other",
    lambda random, case: (*two_brokers(random, case), a_while(random)),
)
def partition(scene: Scene, one: int, other: int, for_ms: int) -> bool:
    """See its meaning."""
    scene.history.say("the network", f"is cut between brokers {one} and {other} for {for_ms} ms")
    scene.world.cut(one, other)
    later(scene, for_ms, lambda: reconnect(scene, one, other))
    return True


@fault(
    "one-way",
    "nothing arrives from one broker at another, while the other direction works",
    lambda random, case: (*two_brokers(random, case), a_while(random)),
)
def one_way(scene: Scene, source: int, target: int, for_ms: int) -> bool:
    """See its meaning."""
    scene.history.say(
        "the network", f"carries nothing from broker {source} to broker {target} for {for_ms} ms"
    )
    scene.world.network.block(source, target)
    later(scene, for_ms, lambda: scene.world.network.open(source, target))
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
    scene.history.say("the network", f"is cut between broker {node_id} and all others for {for_ms} ms")
    scene.world.isolate(node_id)

    def undo() -> None:
        for other in scene.world.hosts:
            if other != node_id:
                reconnect(scene, node_id, other)

    later(scene, for_ms, undo)
    return True


def reconnect(scene: Scene, one: int, other: int) -> None:
    """Open both ways between two again."""
    scene.world.network.open(one, other)
    scene.world.network.open(other, one)


@fault(
    "slow-way",
    "messages from one broker to another are delayed, so that those of other connections overtake them",
    lambda random, case: (*two_brokers(random, case), a_while(random, 500), a_while(random)),
)
def slow_way(scene: Scene, source: int, target: int, delay_ms: int, for_ms: int) -> bool:
    """See its meaning."""
    scene.history.say(
        "the network",
        f"takes {delay_ms} ms longer from broker {source} to broker {target}, for {for_ms} ms",
    )
    ways = scene.world.network.slower_ms
    ways[source, target] = delay_ms
    later(scene, for_ms, lambda: ways.pop((source, target), None))
    return True


@fault(
    "double-connection",
    "a broker takes its connection to another for dead and makes a second; what it sent on the first is late",
    lambda random, case: (*two_brokers(random, case), a_while(random, 6_000)),
)
def double_connection(scene: Scene, source: int, target: int, late_ms: int) -> bool:
    """See its meaning."""
    scene.history.say(
        "the network",
        f"delays the next request of broker {source} to broker {target} by {late_ms} ms; it is sent again",
    )
    scene.world.network.stranding[source, target] = late_ms
    scene.arm("double-connection", (source, target), lost=False)
    return False


@fault(
    "lose-message",
    "a message between brokers is lost: its connection is stuck until somebody gives up",
    two_brokers,
)
def lose_message(scene: Scene, source: int, target: int) -> bool:
    """See its meaning."""
    scene.history.say("the network", f"loses the next message from broker {source} to broker {target}")
    scene.world.network.losing[source, target] = 1
    scene.arm("lose-message", (source, target), lost=True)
    return False
