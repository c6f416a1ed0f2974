"""A record as a consumer's handler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Message

from gapless.client.formats import Identity, identity_of

Headers = Sequence[tuple[str, bytes | None]]


class TopicPartition(NamedTuple):
    """One log."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """One record, and where it was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None

    @property
    def identity(self) -> Identity | None:
        """Who made it, if a Gapless producer did."""
        return identity_of(self.headers)

    @classmethod
    def of(cls, message: Message) -> Record:
        """What librdkafka delivered."""
        kind, timestamp_ms = message.timestamp()
        # Past the constructor of named tuples, which costs as much as half the rest, for each record.
        fields = (
            message.topic(),
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            message.headers() or (),
            timestamp_ms if kind else None,
        )
        return tuple.__new__(cls, fields)
