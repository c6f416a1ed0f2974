"""Records by time. Headers tell which batch matters; only that one is opened."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from gapless.core.log import TimedOffset
from gapless.storage.scan import Skimmed
from gapless.storage.segment import Segment
from gapless.wire.batch import BatchHeader, InvalidBatch, parse_header
from gapless.wire.records import Record, iterate_records

logger = logging.getLogger("gapless.storage")


def first_reaching(batch: memoryview, timestamp_ms: int, start: int, before: int) -> TimedOffset | None:
    """Of one batch whose header reaches the timestamp: the first record within the offsets that does.

    A header that promises more than its records hold is taken by its word, so that a client that lies in
    headers cannot make us open one batch after another.
    """
    header, records = _open(batch, start, before)
    if not header.record_count:
        return None  # compaction has emptied it
    for record in records:
        if record.timestamp_ms >= timestamp_ms:
            return TimedOffset(record.timestamp_ms, record.offset, header.leader_epoch)
    if start <= header.base_offset and header.last_offset < before:
        return TimedOffset(header.max_timestamp, header.base_offset, header.leader_epoch)
    return None


def latest(batch: memoryview, start: int, before: int) -> TimedOffset | None:
    """Of one batch: the first record within the offsets that has the largest timestamp."""
    header, records = _open(batch, start, before)
    found: Record | None = None
    for record in records:
        if found is None or record.timestamp_ms > found.timestamp_ms:
            found = record
    return TimedOffset(found.timestamp_ms, found.offset, header.leader_epoch) if found else None


def _open(batch: memoryview, start: int, before: int) -> tuple[BatchHeader, Iterator[Record]]:
    header = parse_header(batch, 0)
    try:
        records = list(iterate_records(batch, header))
    except InvalidBatch as error:
        # What cannot be opened is taken as a whole: a reader who is sent to its beginning misses nothing.
        logger.warning("the batch at offset %d cannot be opened: %s", header.base_offset, error)
        records = [Record(max(start, header.base_offset), header.max_timestamp, None, None)]
    return header, (record for record in records if start <= record.offset < before)


def first_reaching_in(segment: Segment, timestamp_ms: int, start: int, before: int) -> TimedOffset | None:
    """Of one segment: the first record within the offsets that is at or after the timestamp."""
    if not segment.size or segment.latest()[0] < timestamp_ms:
        return None
    for batch in segment.not_before(timestamp_ms, max(start, segment.base_offset)):
        if batch.base_offset >= before:
            return None
        if batch.max_timestamp >= timestamp_ms and batch.last_offset >= start:
            found = first_reaching(segment.read_batch(batch), timestamp_ms, start, before)
            if found is not None:
                return found
    return None


def latest_in(segment: Segment, start: int, before: int) -> TimedOffset | None:
    """Of one segment: the first record within the offsets that has the largest timestamp."""
    timestamp_ms, last_offset = segment.latest()
    if timestamp_ms < 0 or not segment.size:
        return None
    top = segment.find(last_offset)
    if start <= top.base_offset and top.last_offset < before:
        return latest(segment.read_batch(top), start, before)
    if start <= segment.base_offset:
        candidates = segment.latest_before(before)
    else:
        candidates = segment.skim(segment.locate(start)[0])
    best: Skimmed | None = None
    found: list[TimedOffset | None] = []
    for batch in candidates:
        if batch.base_offset >= before:
            break
        if batch.base_offset < start or batch.last_offset >= before:
            found.append(latest(segment.read_batch(batch), start, before))  # its largest may be out of range
        elif best is None or batch.max_timestamp > best.max_timestamp:
            best = batch
    if best is not None:
        found.append(latest(segment.read_batch(best), start, before))
    return max(filter(None, found), key=lambda each: (each.timestamp_ms, -each.offset), default=None)
