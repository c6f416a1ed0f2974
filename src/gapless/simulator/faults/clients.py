"""What goes wrong between clients and brokers, and with clients themselves."""

from __future__ import annotations

from gapless.simulator.faults.fault import a_while, fault, later, resolve, some_broker, some_client
from gapless.simulator.faults.network import reconnect
from gapless.simulator.scene import Scene


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
    way = (node_id, scene.clients[client].number)
    scene.world.network.losing[way] = 1
    scene.arm("lose-answer", way, lost=True)
    return False


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
    way = (scene.clients[client].number, node_id)
    scene.world.network.stranding[way] = late_ms
    scene.arm("late-request", way, lost=False)
    return False


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
    scene.history.say("the network", f"is cut between {client} and broker {node_id} for {for_ms} ms")
    scene.world.cut(number, node_id)
    later(scene, for_ms, lambda: reconnect(scene, number, node_id))
    return True


@fault(
    "client-pause",
    "a client's process stands still, and goes on later as if nothing had been",
    lambda random, case: (some_client(random, case), a_while(random)),
)
def client_pause(scene: Scene, client: str, for_ms: int) -> bool:
    """See its meaning."""
    scene.history.say(client, f"stands still for {for_ms} ms")
    scene.clients[client].stall(for_ms)
    return True
