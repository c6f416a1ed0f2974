"""A record as a consumer's handler sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        return cls.of_all((message,))[0]

    @classmethod
    def of_all(cls, messages: Iterable[Message]) -> list[Record]:
        """Many at once."""
        new = tuple.__new__  # past the constructor of named tuples, which costs as much as half the rest
        return [
            new(
                cls,
                (
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    message.headers() or (),
                    timestamp_ms if kind else None,
                ),
            )
            for message in messages
            for kind, timestamp_ms in (message.timestamp(),)
        ]
