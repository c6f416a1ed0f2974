"""What Gapless writes into other people's topics: identities in headers, seals, and the names of its own.

The one definition for producers, consumers, pipelines and audits; docs/formats.md tells it to other programs.

A record's identity is (source, incarnation, topic, partition, sequence). Topic and partition are where the
record is; the rest travels in two headers:

    gs  one byte 0x01, 8 bytes of incarnation, the source's name in UTF-8
    gn  8 bytes, big-endian: the sequence, dense from 0 in each (source, incarnation, topic, partition)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from gapless.errors import GaplessError, UsageError

SOURCE_HEADER = "gs"
SEQUENCE_HEADER = "gn"
_IDENTITY_VERSION = b"\x01"
INCARNATION_BYTES = 8
_SOURCE_AT = 1 + INCARNATION_BYTES
_SEQUENCE = Struct(">Q")
_SOURCE_NAME = re.compile(r"[A-Za-z0-9._-]{1,150}")

LEDGER_TOPIC = "gapless.ledger"
POSITION_PARTITION = 0
"""The ledger's partition under which positions are committed: an address for offsets, not for records."""
SEAL_VERSION = 1


class UnreadableSeal(GaplessError):
    """A record of the ledger that this version cannot understand."""


class Identity(NamedTuple):
    """Who made a record, and the how-manieth of its topic and partition it was."""

    source: str
    incarnation: bytes
    sequence: int


class Interval(NamedTuple):
    """Sequences of one topic and partition, both ends included."""

    topic: str
    partition: int
    first: int
    last: int


def check_source(source: object) -> str:
    """The source's name, if it is one that groups, transactional ids and headers can carry."""
    if not isinstance(source, str) or not _SOURCE_NAME.fullmatch(source):
        raise UsageError(
            f"{source!r} cannot name a source: use 1 to 150 letters, digits, dots, dashes or underscores"
        )
    return source


def source_header(source: str, incarnation: bytes) -> bytes:
    return _IDENTITY_VERSION + incarnation + source.encode()


sequence_header = _SEQUENCE.pack
"""Its bytes, from the sequence."""


def identity_of(headers: Iterable[tuple[str, bytes | None]] | None) -> Identity | None:
    """The identity that the headers tell; None where there is none, or what looks like one is not."""
    made_by = sequence = None
    for name, value in headers or ():
        if name == SOURCE_HEADER:
            made_by = value
        elif name == SEQUENCE_HEADER:
            sequence = value
    if made_by is None or sequence is None or len(sequence) != _SEQUENCE.size:
        return None
    maker = _maker(made_by)
    return None if maker is None else Identity(*maker, *_SEQUENCE.unpack(sequence))


@lru_cache(maxsize=10_000)  # a few sources make very many records
def _maker(made_by: bytes) -> tuple[str, bytes] | None:
    """Source and incarnation; None for what only looks like them."""
    if len(made_by) <= _SOURCE_AT or not made_by.startswith(_IDENTITY_VERSION):
        return None
    source = made_by[_SOURCE_AT:].decode(errors="replace")
    if not _SOURCE_NAME.fullmatch(source):
        return None
    return source, made_by[1:_SOURCE_AT]


def position_group(source: str, incarnation: bytes) -> str:
    """The group whose offset in the ledger tells how much of a spool has been sent."""
    return f"gapless.position.{source}.{incarnation.hex()}"


def reached_group(source: str, incarnation: bytes) -> str:
    """The group whose offset in the ledger tells how much of a spool may be sent without transactions."""
    return f"gapless.reached.{source}.{incarnation.hex()}"


def owner_group(source: str) -> str:
    """The group whose offset's metadata names the process that sends for a source."""
    return f"gapless.owner.{source}"


@dataclass(frozen=True, slots=True)
class Seal:
    """A promise: the cluster has acknowledged these records. What many seals say adds up."""

    source: str
    incarnation: bytes
    sealed_at_ms: int
    reason: str
    """`interval`, `close` or `recovered` (after a restart, up to where the last process came)."""
    intervals: tuple[Interval, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Records acknowledged per topic, over the incarnation's whole life."""

    def key(self) -> bytes:
        return f"{self.source}:{self.incarnation.hex()}".encode()

    def to_bytes(self) -> bytes:
        content = {
            "version": SEAL_VERSION,
            "source": self.source,
            "incarnation": self.incarnation.hex(),
            "sealed_at_ms": self.sealed_at_ms,
            "reason": self.reason,
            "intervals": [list(interval) for interval in self.intervals],
            "counts": dict(self.counts),
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, encoded: bytes) -> Seal:
        try:
            content: dict[str, Any] = json.loads(encoded)
            if content["version"] != SEAL_VERSION:
                raise UnreadableSeal(
                    f"a seal of version {content['version']}; this Gapless reads version {SEAL_VERSION}"
                )
            return cls(
                source=str(content["source"]),
                incarnation=bytes.fromhex(content["incarnation"]),
                sealed_at_ms=int(content["sealed_at_ms"]),
                reason=str(content["reason"]),
                intervals=tuple(
                    Interval(str(topic), int(partition), int(first), int(last))
                    for topic, partition, first, last in content["intervals"]
                ),
                counts={str(topic): int(count) for topic, count in content["counts"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableSeal(f"not a seal: {encoded[:60]!r} ({error})") from error
