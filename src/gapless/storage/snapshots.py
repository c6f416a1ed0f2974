"""Producer snapshots: Apache Kafka's file format for what a broker remembers of producers at one offset.

Version 1: int16 version, uint32 CRC-32C of what follows it, int32 count, then the entries. The file is named
after the offset, 20 digits and `.snapshot`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct

from crc32c import crc32c

from gapless.core.log import ProducerEntry

SUFFIX = ".snapshot"

_VERSION = 1
_HEAD = Struct(">hIi")
_CHECKED_FROM = 6
_ENTRY = Struct(">qhiqiqiq")


class CorruptSnapshot(Exception):
    """A snapshot file that cannot be used; an older one can."""


def snapshot_name(offset: int) -> str:
    """The file's name."""
    return f"{offset:020d}{SUFFIX}"


def encode_snapshot(entries: Sequence[ProducerEntry]) -> bytes:
    """The file's contents."""
    data = bytearray(_HEAD.pack(_VERSION, 0, len(entries)))
    for entry in entries:
        data += _ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp_ms,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
    _HEAD.pack_into(data, 0, _VERSION, crc32c(memoryview(data)[_CHECKED_FROM:]), len(entries))
    return bytes(data)


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """The entries of a file, or `CorruptSnapshot` with the reason."""
    try:
        version, crc, count = _HEAD.unpack_from(data)
    except struct.error:
        raise CorruptSnapshot(f"it has only {len(data)} bytes") from None
    if version != _VERSION:
        raise CorruptSnapshot(f"its version {version} is not known")
    if crc32c(memoryview(data)[_CHECKED_FROM:]) != crc:
        raise CorruptSnapshot("its checksum is wrong")
    if len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"{count} entries do not take {len(data)} bytes")
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]
