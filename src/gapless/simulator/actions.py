"""What steps ask of clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gapless.simulator.clients.group import Member
from gapless.simulator.clients.producer import Producer
from gapless.simulator.clients.relay import Relay
from gapless.simulator.clients.transactional import Plan, TransactionalProducer
from gapless.simulator.history import Place
from gapless.simulator.scene import Scene


def send(scene: Scene, client: str, topic: str, partition: int, count: int) -> None:
    """A producer sends a batch of so many records."""
    producer = scene.clients[client]
    if isinstance(producer, Producer):
        producer.send((topic, partition), count)


def write_to(scene: Scene, client: str, place: Place, count: int) -> None:
    """A producer of whatever kind writes so many records to one place."""
    producer = scene.clients[client]
    if isinstance(producer, Producer):
        producer.send(place, count)
    elif isinstance(producer, TransactionalProducer):
        producer.transact(Plan([(place, count)], commit=True))


def transact(scene: Scene, client: str, writes: list[Any], commit: bool) -> None:
    """A producer makes a transaction of batches, each given by topic, partition and number of records."""
    producer = scene.clients[client]
    if isinstance(producer, TransactionalProducer):
        producer.transact(Plan([((topic, partition), count) for topic, partition, count in writes], commit))


def succeed(scene: Scene, client: str, doze_ms: int = 0) -> None:
    """A new process takes over a transactional producer's id, while the old one goes on as a zombie.

    A relay that becomes a zombie may stand still first, with what it has read.
    """
    before = scene.clients[client]
    if isinstance(before, TransactionalProducer):
        before.name = _take_name(scene, client)
        scene.clients[client] = TransactionalProducer(
            scene,
            client,
            transactional_id=before.transactional_id,
            newer=before.newer,
            timeout_ms=before.timeout_ms,
            pipelined=before.pipelined,
        )
    elif isinstance(before, Relay):
        before.retire(_take_name(scene, client))
        before.doze(doze_ms)
        scene.clients[client] = Relay(
            scene,
            client,
            group=before.group,
            topic=before.membership.topic,
            target=before.target,
            protocol=before.protocol,
            newer=before.newer,
        )


def _take_name(scene: Scene, client: str) -> str:
    """Somebody else is going to have this name: the former owner's new one."""
    name = f"{client}'"
    while name in scene.clients:
        name += "'"
    scene.clients[name] = scene.clients[client]
    return name


def doze(scene: Scene, client: str, ms: int) -> None:
    """A member of a group stands still as soon as it has something in hand, and goes on later."""
    member = scene.clients[client]
    if isinstance(member, Member):
        member.doze(ms)


def leave(scene: Scene, client: str, away_ms: int) -> None:
    """A member leaves its group, and comes back later."""
    member = scene.clients[client]
    if isinstance(member, Member):
        member.go_away(away_ms)


def die(scene: Scene, client: str, down_ms: int) -> None:
    """A member's process is killed, and another one started later."""
    member = scene.clients[client]
    if isinstance(member, Member):
        scene.history.say(client, "is killed")
        member.die(down_ms)


ACTIONS: dict[str, Callable[..., None]] = {
    "send": send,
    "transact": transact,
    "succeed": succeed,
    "doze": doze,
    "leave": leave,
    "die": die,
}
