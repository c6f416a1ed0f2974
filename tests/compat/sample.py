"""Records that are easy to get wrong, and the plain form in which the clients' views of them are compared."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NamedTuple

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# Within the week that topics keep by default, and not in the future, which brokers refuse.
AN_HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000


class Record(NamedTuple):
    """One record as its sender meant it; as read, with the offset that the broker gave it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int | None = None


def rich(partition: int) -> list[Record]:
    """All that the format allows: null, empty, binary, repeated and null headers, times that go backwards."""
    incompressible = random.Random(partition).randbytes(20_000)
    every_byte = bytes(range(256))
    odd_bytes = bytes(
        byte for byte in every_byte if byte not in b"\0\n,"
    )  # which end a header that kcat prints
    headers = (("same", b"1"), ("same", b"2"), ("empty", b""), ("null", None), ("ünï", odd_bytes))
    parts = [
        (b"plain", b"key", ()),
        (b"no key", None, ()),
        (b"", b"", ()),
        (None, b"tombstone", ()),
        (every_byte, every_byte, ()),
        (b"with headers", None, headers),
        (b"repeats itself " * 8_000, b"large", ()),
        (incompressible, b"incompressible", headers),
        ("grüße, 世界".encode(), "ключ".encode(), ()),
    ]
    return [
        Record(value, key, headers, AN_HOUR_AGO_MS - index * 1_000, partition)
        for index, (value, key, headers) in enumerate(parts)
    ]


def rich_without_null_headers(partition: int) -> list[Record]:
    """`rich`, for a client that refuses to send a header without a value."""
    return [
        record._replace(headers=tuple(header for header in record.headers if header[1] is not None))
        for record in rich(partition)
    ]


def plain(partition: int) -> list[Record]:
    """What a line-based tool can say: a key, a value without line breaks, the same headers for all."""
    values = [b"first", b"", "grüße, 世界".encode(), b"repeats itself " * 500, b"last"]
    headers = (("origin", b"line"), ("kind", b"text"))
    return [
        Record(value or None, b"key-%d" % index, headers, None, partition)
        for index, value in enumerate(values)
    ]


def numbered(count: int, *, partition: int = 0, size_bytes: int = 0) -> list[Record]:
    """Records that can be told apart: value i is its number, padded to a size."""
    return [
        Record(
            (b"%08d" % i).ljust(size_bytes, b"."),
            timestamp_ms=AN_HOUR_AGO_MS + i * 1_000,
            partition=partition,
        )
        for i in range(count)
    ]


def numbers(records: Sequence[Record]) -> list[int]:
    """The numbers of `numbered` records, in the order read."""
    return [int(record.value[:8]) for record in records if record.value is not None]
