"""What both twins of the log decide alike."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.core.log import LogConfig
from gapless.wire.batch import BatchHeader

MAX_RELATIVE = 2**31 - 1
"""Offsets and positions in indexes are four bytes, counted from the segment's beginning."""

# A segment is rolled long before its offsets could outgrow that.
ROLL_AT_OFFSETS = 2**30


def is_full(config: LogConfig, size_bytes: int, offsets: int, incoming_bytes: int) -> bool:
    """Whether a segment of that size, with so many offsets, has no room for an append."""
    return size_bytes + incoming_bytes > config.segment_bytes or offsets >= ROLL_AT_OFFSETS


def is_too_old(config: LogConfig, first_timestamp_ms: int, max_timestamp_ms: int) -> bool:
    """Whether a segment that began with one timestamp is too old to take another (-1: there is none)."""
    return first_timestamp_ms >= 0 and max_timestamp_ms - first_timestamp_ms > config.segment_ms


def check_chain(batches: Sequence[BatchHeader], size_bytes: int, end_offset: int, base_offset: int) -> None:
    """Refuse what would break the chain of offsets: that is a mistake of the caller, not of the medium."""
    offset = end_offset
    for batch in batches:
        if batch.base_offset != offset:
            raise ValueError(f"a batch at offset {batch.base_offset} cannot follow where {offset} is next")
        offset += batch.last_offset_delta + 1
        size_bytes -= batch.size_bytes
    if size_bytes:
        raise ValueError(f"the payload is {size_bytes} bytes longer than its batches")
    if offset - base_offset > MAX_RELATIVE:
        raise ValueError(f"offset {offset} is too far from the segment's first, {base_offset}")
