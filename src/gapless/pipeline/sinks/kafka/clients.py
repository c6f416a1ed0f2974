"""Clients of the output cluster, made from one set of librdkafka properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from gapless.errors import UsageError

# What any client needs to reach a cluster. The rest is about producing, and other clients warn about it.
_CONNECTION = ("security.", "sasl.", "ssl.", "enable.ssl.", "socket.", "broker.", "client.", "reconnect.")
_CONNECTION_NAMES = frozenset(("log_level", "logger", "oauth_cb", "error_cb", "debug"))
_ABOUT_LOGS = ("logger", "log_level", "debug")
_OURS = {
    "bootstrap.servers": "it is the sink's `bootstrap`",
    "transactional.id": "the sink has one for each of its tasks",
    "transaction.timeout.ms": "it is the sink's `transaction_timeout_ms`",
    "on_delivery": "a task tells of its records all at once",
    "delivery.report.only.error": "the sink needs it on",
    # A record is tried for as long as its transaction may last.
    "message.timeout.ms": "it follows `transaction_timeout_ms`",
    "delivery.timeout.ms": "it follows `transaction_timeout_ms`",
}
_SOCKET_TIMEOUT_MS = 10_000
# A new client that connects only where it must waits 50 ms, and one time in five 500 ms, until it has found
# its coordinator. Each task may need a new one, and is done in 20 ms.
_CONNECT_AT_ONCE = {"enable.sparse.connections": False}


@dataclass(frozen=True, slots=True)
class Target:
    """The output cluster: where it is, how to reach it, and how long a transaction may be open there."""

    bootstrap: str
    transaction_timeout_ms: int
    properties: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.properties:
            if name in _OURS:
                raise UsageError(f"{name} cannot be set for a Kafka sink: {_OURS[name]}")

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal targets, also where one has been pickled."""
        settings = sorted(
            (name, getattr(value, "__qualname__", value)) for name, value in self.properties.items()
        )
        return self.bootstrap, self.transaction_timeout_ms, repr(settings)

    def producer(
        self, transactional_id: str, on_failed: Callable[[KafkaError | None, Message], None]
    ) -> Producer:
        """Only failures are told one by one; that the other records arrived is what a commit says."""
        properties = {
            # Else librdkafka 2.16 forgets all brokers when they are gone at once, and a call under way may
            # never return. After a failure comes a new producer, which begins with `bootstrap` anyway.
            "metadata.recovery.strategy": "none",
            **_CONNECT_AT_ONCE,
            "reconnect.backoff.max.ms": 1_000,
            "socket.timeout.ms": min(_SOCKET_TIMEOUT_MS, self.transaction_timeout_ms),
            # Room for what is produced while a request is under way, and a bound on a worker's memory.
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 131_072,
            # As Java's producers do, and so Spark's own sink: a key comes to the same partition.
            "partitioner": "murmur2_random",
            # Without one, `poll` raises what the next call into the transaction tells anyway.
            "error_cb": _leave_it,
            **_quiet(self.properties),
            "bootstrap.servers": self.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": self.transaction_timeout_ms,
            "delivery.report.only.error": True,
            "on_delivery": on_failed,
        }
        try:
            return Producer(properties)
        except KafkaException as error:
            raise UsageError(
                f"no producer can be made with these properties: {error.args[0].str()}"
            ) from error

    def consumer(self, group: str) -> Consumer:
        """For the offsets of a group, and only for those that no open transaction may still change."""
        properties = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        return Consumer({**_CONNECT_AT_ONCE, **self._connection(), **properties})

    def admin(self) -> AdminClient:
        return AdminClient(self._connection())

    def _connection(self) -> dict[str, Any]:
        needed = {
            name: value
            for name, value in self.properties.items()
            if name in _CONNECTION_NAMES or name.startswith(_CONNECTION)
        }
        return {**_quiet(needed), "bootstrap.servers": self.bootstrap}


def _leave_it(_error: KafkaError) -> None:
    pass


def _quiet(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What users must know is raised; librdkafka's own lines go nowhere unless somebody chose a place."""
    chosen = any(name in properties for name in _ABOUT_LOGS)
    return dict(properties) if chosen else {"log_level": 0, **properties}
