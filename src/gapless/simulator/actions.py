"""What steps ask of clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gapless.simulator.clients.producer import Producer
from gapless.simulator.clients.transactional import Plan, TransactionalProducer
from gapless.simulator.scene import Scene


def send(scene: Scene, client: str, topic: str, partition: int, count: int) -> None:
    """A producer sends a batch of so many records."""
    producer = scene.clients[client]
    if isinstance(producer, Producer):
        producer.send((topic, partition), count)


def transact(scene: Scene, client: str, writes: list[Any], commit: bool) -> None:
    """A producer makes a transaction of batches, each given by topic, partition and number of records."""
    producer = scene.clients[client]
    if isinstance(producer, TransactionalProducer):
        producer.transact(Plan([((topic, partition), count) for topic, partition, count in writes], commit))


def succeed(scene: Scene, client: str) -> None:
    """A new process takes over a transactional producer's id, while the old one goes on as a zombie."""
    before = scene.clients[client]
    if not isinstance(before, TransactionalProducer):
        return
    name = f"{before.name}'"
    while name in scene.clients:
        name += "'"
    scene.clients[name] = before
    after = TransactionalProducer(
        scene, client, before.transactional_id, newer=before.newer, timeout_ms=before.timeout_ms
    )
    before.name = name
    scene.clients[client] = after


ACTIONS: dict[str, Callable[..., None]] = {"send": send, "transact": transact, "succeed": succeed}
