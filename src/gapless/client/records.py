"""A record as a consumer's handler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Message

from gapless.client.formats import Identity, identity_of
from gapless.errors import GaplessError

Headers = Sequence[tuple[str, bytes | None]]


class UnreadableRecord(GaplessError):
    """A record that Python's librdkafka cannot hand over."""


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
        return cls.of_all((message.topic() or "", message.partition() or 0), (message,))[0]

    @classmethod
    def of_all(cls, place: tuple[str, int], messages: Sequence[Message]) -> list[Record]:
        """Many of one partition at once.

        Raises UnreadableRecord. Its message must not be looked at again: a header without a name, which is
        what is left of it there, ends the process.
        """
        new = tuple.__new__  # past the constructor of named tuples, which costs as much as half the rest
        topic, partition = place
        rest = iter(messages)
        try:
            return [
                new(
                    cls,
                    (
                        topic,
                        partition,
                        message.offset(),
                        message.key(),
                        message.value(),
                        message.headers() or (),
                        timestamp_ms if kind else None,
                    ),
                )
                for message in rest
                for kind, timestamp_ms in (message.timestamp(),)
            ]
        except (SystemError, UnicodeDecodeError) as error:
            behind = sum(1 for _ in rest)
            offset = messages[len(messages) - behind - 1].offset()
            raise UnreadableRecord(
                f"{topic}-{partition} at offset {offset} cannot be read: the name of a header is not UTF-8"
            ) from error
