"""Producers that survive and consumers that act once, on any Kafka.

    from gapless.client import Consumer, Producer

Nothing is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.client.consuming.consumer import Consumer
    from gapless.client.consuming.failures import DeadLetters, DeadLettersUnwritable, ProcessingFailed
    from gapless.client.producing.direct import BufferFull
    from gapless.client.producing.producer import Producer
    from gapless.client.producing.receipts import DeliveryFailed, LeftInSpool, Receipt, StillWaiting
    from gapless.client.records import Record, TopicPartition, UnreadableRecord
    from gapless.client.relaying import Output, Relay, RelayFailed, RelayFenced, relay
    from gapless.client.semantics import Semantics
    from gapless.client.stores.none import NoStore
    from gapless.client.stores.port import StoreUnavailable
    from gapless.client.stores.postgres import PostgresStore
    from gapless.client.stores.redis import RedisStore
    from gapless.client.stores.sqlite import SqliteStore

__all__ = [
    "BufferFull",
    "Consumer",
    "DeadLetters",
    "DeadLettersUnwritable",
    "DeliveryFailed",
    "LeftInSpool",
    "NoStore",
    "Output",
    "PostgresStore",
    "ProcessingFailed",
    "Producer",
    "Receipt",
    "Record",
    "RedisStore",
    "Relay",
    "RelayFailed",
    "RelayFenced",
    "Semantics",
    "SqliteStore",
    "StillWaiting",
    "StoreUnavailable",
    "TopicPartition",
    "UnreadableRecord",
    "relay",
]

_HOMES = {
    "BufferFull": "producing.direct",
    "Consumer": "consuming.consumer",
    "DeadLetters": "consuming.failures",
    "DeadLettersUnwritable": "consuming.failures",
    "DeliveryFailed": "producing.receipts",
    "LeftInSpool": "producing.receipts",
    "NoStore": "stores.none",
    "Output": "relaying",
    "PostgresStore": "stores.postgres",
    "ProcessingFailed": "consuming.failures",
    "Producer": "producing.producer",
    "Receipt": "producing.receipts",
    "Record": "records",
    "RedisStore": "stores.redis",
    "Relay": "relaying",
    "RelayFailed": "relaying",
    "RelayFenced": "relaying",
    "Semantics": "semantics",
    "SqliteStore": "stores.sqlite",
    "StillWaiting": "producing.receipts",
    "StoreUnavailable": "stores.port",
    "TopicPartition": "records",
    "UnreadableRecord": "records",
    "relay": "relaying",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
