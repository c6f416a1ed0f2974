"""Metadata records as the bytes of ZooKeeper's nodes, which must stay well below a megabyte each.

A node's data is a line of JSON, the header, and the compressed records. If these are too large they are in
nodes of their own, the parts, and the header says how many there are.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple, Self

from gapless.core.records import MetadataRecord, from_json, to_json

PART_BYTES = 512 * 1024


class Header(NamedTuple):
    """What a node says about itself. The last three are those of a snapshot."""

    writer: str
    """Tells one attempt to write from all others, and names the parts."""
    parts: int
    version: int = 0
    kept_from: int = 0
    """The oldest change that is not to be removed."""
    removed_from: int = 0
    """Where to begin with the next removal."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` has written, or `ValueError`."""
        try:
            return cls(**json.loads(data.partition(b"\n")[0]))
        except TypeError as error:
            raise ValueError(str(error)) from error

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"


def pack(
    writer: str,
    records: Sequence[MetadataRecord],
    *,
    version: int = 0,
    kept_from: int = 0,
    removed_from: int = 0,
) -> list[bytes]:
    """The data of a node, and of its parts if it needs any."""
    text = json.dumps([to_json(record) for record in records], separators=(",", ":"))
    body = zlib.compress(text.encode())
    parts = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]
    if len(parts) == 1:
        return [Header(writer, 0, version, kept_from, removed_from).to_bytes() + body]
    return [Header(writer, len(parts), version, kept_from, removed_from).to_bytes(), *parts]


def unpack(data: bytes, parts: Sequence[bytes]) -> list[MetadataRecord]:
    """The records. Raises `ValueError` if these are none."""
    _, _, body = data.partition(b"\n")
    try:
        texts = json.loads(zlib.decompress(b"".join(parts) or body))
        return [from_json(values) for values in texts]
    except (zlib.error, KeyError, TypeError) as error:
        raise ValueError(str(error)) from error
