"""What the tests of storage share: making batches, filling logs, and a crash that needs no process to die."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import UUID

from gapless.core.log import Log, LogConfig
from gapless.storage import FileLog, FileLogStore, ReadableSlice
from gapless.wire.batch import BatchHeader, parse_header
from gapless.wire.records import build_batch

TOPIC = "orders"
TOPIC_ID = UUID("3b3b9a5c-7b1d-4c4e-9f0a-1d2e3f405162")
SMALL = LogConfig(segment_bytes=4000, index_interval_bytes=200)


def make_batch(
    base_offset: int,
    timestamps: Sequence[int] = (1000,),
    *,
    value: bytes = b"value",
    epoch: int = 0,
    compression: int = 0,
    producer_id: int = -1,
    sequence: int = -1,
) -> bytearray:
    """A batch at its place in the log."""
    return build_batch(
        [(timestamp, None, value) for timestamp in timestamps],
        base_offset=base_offset,
        compression=compression,
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
    )


def append(log: Log, *batches: bytes | bytearray) -> bool:
    """Append batches as the core does; whether a segment was begun."""
    payload = bytearray(b"".join(batches))
    headers = parse_all(payload)
    rolled = log.roll_if_needed(len(payload), max(header.max_timestamp for header in headers))
    if rolled:
        log.save_producers([])
    log.append(headers, memoryview(payload))
    return rolled


def append_one(
    log: Log, timestamps: Sequence[int] = (1000,), *, value: bytes = b"value", epoch: int = 0
) -> bytes:
    """Append one batch at the log's end; its bytes."""
    batch = make_batch(log.end_offset, timestamps, value=value, epoch=epoch)
    append(log, batch)
    return bytes(batch)


def fill(log: Log, count: int, *, value: bytes = b"value" * 10, first_timestamp: int = 1000) -> list[bytes]:
    """Append that many batches of one record each, a millisecond apart."""
    return [append_one(log, (first_timestamp + i,), value=value) for i in range(count)]


def parse_all(payload: bytes | bytearray | memoryview) -> list[BatchHeader]:
    """The headers of batches that lie one after another."""
    headers = []
    position = 0
    while position < len(payload):
        headers.append(parse_header(payload, position))
        position += headers[-1].size_bytes
    return headers


def read_all(log: Log, start: int | None = None) -> bytes:
    """Everything readable, by as many reads as it takes."""
    offset = log.start_offset if start is None else start
    parts = []
    while offset < log.end_offset:
        part = contents(log.read(offset, 1 << 20, log.end_offset, at_least_one=True))
        parts.append(part)
        offset = parse_all(part)[-1].next_offset
    return b"".join(parts)


def contents(records: object) -> bytes:
    """The bytes of a slice, which must end where it says."""
    readable: ReadableSlice = records  # type: ignore[assignment]
    if not readable.size:
        return b""
    payload = bytes(readable.read(0, readable.size))
    if (last := parse_all(payload)[-1]).next_offset != readable.end_offset:
        raise AssertionError(f"a slice that ends with {last} claims to end at {readable.end_offset}")
    return payload


def offsets_of(payload: bytes) -> list[int]:
    """The base offsets of batches."""
    return [header.base_offset for header in parse_all(payload)]


def flush(log: FileLog, *, closed_only: bool = False) -> None:
    """Flush as the shell does, on this thread."""
    job = log.prepare_flush(closed_only)
    if job is not None:
        job.run()
        log.flushed(job)


def open_log(store: FileLogStore, config: LogConfig = SMALL, partition: int = 0) -> FileLog:
    return store.open(TOPIC, TOPIC_ID, partition, config)


def crashed_copy(store: FileLogStore, target: Path) -> Path:
    """The data folder as a broker that dies this moment leaves it (the page cache survives the process)."""
    shutil.copytree(store.location, target, ignore=shutil.ignore_patterns(".lock"))
    return target


def log_file(store: FileLogStore, base_offset: int = 0, suffix: str = ".log", partition: int = 0) -> Path:
    return Path(store.location) / f"{TOPIC}-{partition}" / f"{base_offset:020d}{suffix}"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def total(sizes: Iterable[bytes]) -> int:
    return sum(map(len, sizes))
