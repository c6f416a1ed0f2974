"""How a follower's log grows, and is cut, by its leader's word.

Batches are appended as they came: offsets and epochs are the leader's. What a producer wrote, and which
transaction ended, is noted as a leader would note it, so that a follower that comes to lead knows all of it.
"""

from __future__ import annotations

from gapless.core.partition import Partition
from gapless.wire.batch import HEADER_SIZE, BatchHeader, InvalidBatch, is_intact, parse_header
from gapless.wire.errors import ErrorCode
from gapless.wire.records import iterate_records, thinned
from gapless.wire.transaction_records import decode_marker


def copy_batches(partition: Partition, payload: memoryview) -> None:
    """Append all whole batches; what is before a broken one stays. Raises `InvalidBatch`, `LogFailed`."""
    _begin_with_whole_batch(partition, payload)
    run: list[BatchHeader] = []
    start = position = 0
    end_offset = partition.log.end_offset
    try:
        while position + HEADER_SIZE <= len(payload):
            batch = parse_header(payload, position)
            if position + batch.size_bytes > len(payload) and batch.size_bytes >= HEADER_SIZE:
                return  # cut by the limit of the fetch
            _check(partition, payload, batch, end_offset)
            if batch.base_offset > end_offset:
                if run:
                    _append(partition, run, payload[start:position])
                run, start = [], position
                _fill(partition, end_offset, batch)
            if run and position + batch.size_bytes - start > partition.config.segment_bytes:
                _append(partition, run, payload[start:position])
                run, start = [], position
            run.append(batch)
            position += batch.size_bytes
            end_offset = batch.next_offset
    finally:
        if run:
            _append(partition, run, payload[start:position])


def _begin_with_whole_batch(partition: Partition, payload: memoryview) -> None:
    """An empty log is to begin inside a batch, if records were deleted up to there: take all of the batch.

    Its first records stay hidden: `follow_watermark` makes the log begin where the leader's does.
    """
    log = partition.log
    if log.start_offset < log.end_offset or len(payload) < HEADER_SIZE:
        return
    first = parse_header(payload, 0)
    is_whole = HEADER_SIZE <= first.size_bytes <= len(payload) and is_intact(payload, first)
    if is_whole and 0 <= first.base_offset < log.end_offset <= first.last_offset:
        partition.truncate_to(first.base_offset)


def _check(partition: Partition, payload: memoryview, batch: BatchHeader, end_offset: int) -> None:
    if not is_intact(payload, batch):
        raise InvalidBatch(
            ErrorCode.CORRUPT_MESSAGE, f"a batch from the leader is damaged, at offset {end_offset} or after"
        )
    # Compaction leaves gaps, so a batch may begin after the end; never before it.
    if batch.base_offset < end_offset or batch.last_offset_delta < 0:
        raise InvalidBatch(
            ErrorCode.CORRUPT_MESSAGE,
            f"the leader sent offsets {batch.base_offset} to {batch.last_offset}, wanted was {end_offset}",
        )
    if batch.leader_epoch > partition.leader_epoch:
        raise InvalidBatch(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"a batch is of epoch {batch.leader_epoch}, of which nothing is known",
        )


def _fill(partition: Partition, end_offset: int, batch: BatchHeader) -> None:
    """Put an empty batch where compaction left a gap: a log that was not compacted itself has none."""
    attributes, timestamp_ms, producer = 0, -1, (-1, -1, -1)
    header = BatchHeader(
        end_offset,
        HEADER_SIZE,
        batch.leader_epoch,
        0,
        attributes,
        batch.base_offset - end_offset - 1,
        timestamp_ms,
        timestamp_ms,
        *producer,
        0,
        0,
    )
    payload = memoryview(thinned(header, b"", ()))
    _append(partition, [parse_header(payload, 0)], payload)


def _append(partition: Partition, batches: list[BatchHeader], payload: memoryview) -> None:
    log = partition.log
    newest_ms = max(batch.max_timestamp for batch in batches)
    if log.roll_if_needed(len(payload), newest_ms):
        log.save_producers(partition.producers.snapshot())
    log.append(batches, payload)
    shift = batches[0].position
    for batch in batches:
        if not batch.has_producer_id:
            continue
        if not batch.is_control:
            partition.producers.record(batch)
            continue
        records = iterate_records(payload, batch._replace(position=batch.position - shift))
        if (marker := decode_marker(records)) is not None:
            partition.end_transaction(batch, marker)


def follow_watermark(partition: Partition, leaders_watermark: int, leaders_start: int) -> None:
    """Take over how far the leader says that all is committed, and where its log begins."""
    end_offset = partition.log.end_offset
    watermark = min(leaders_watermark, end_offset)
    if watermark > partition.high_watermark:
        partition.high_watermark = watermark
        partition.producers.settle(watermark)
    if partition.log.start_offset < leaders_start <= end_offset:
        partition.delete_records(leaders_start)


def truncate_by_epoch(partition: Partition, epoch: int, end_offset: int) -> None:
    """Cut what the leader does not have: it knows `epoch`, which ended there at `end_offset`.

    If that epoch is not known here, everything after the largest one below it goes, and the next fetch tells
    how it compares.
    """
    log = partition.log
    own_epoch, own_end = log.end_of_epoch(epoch)
    if own_epoch == epoch:
        own_end = min(own_end, end_offset)
    elif own_epoch < 0:
        own_end = max(0, min(log.start_offset, end_offset))
    partition.truncate_to(own_end)


def start_over(partition: Partition, leaders_start: int) -> None:
    """What is here has nothing in common with the leader's log, or ends before it begins.

    Nothing stays, not even the last epoch: the leader may not know it any more, and would refuse for ever.
    """
    partition.truncate_to(0)
    partition.delete_records(leaders_start)
    partition.reload()
