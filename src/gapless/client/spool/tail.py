"""The newest stored records in memory, so that sending what was just stored reads nothing from disk."""

from __future__ import annotations

from collections import deque

from gapless.client.records import Headers
from gapless.client.spool.blocks import NO_TIMESTAMP, Rows, Stream, decode_headers
from gapless.client.spool.group import Group
from gapless.client.spool.records import Spooled


class Tail:
    """Bounded: the oldest groups go first. Not locked; the spool's lock is held around each call."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._groups: deque[Group] = deque()

    def add(self, group: Group) -> None:
        """A group that was stored just now."""
        self._groups.append(group)
        self._size_bytes += group.size_bytes
        while self._size_bytes > self._max_bytes:
            self._forget_first()

    def forget_below(self, position: int) -> None:
        """Sent records are hardly ever read again."""
        while self._groups and self._groups[0].end <= position:
            self._forget_first()

    def _forget_first(self) -> None:
        group = self._groups.popleft()
        self._size_bytes -= group.size_bytes
        group.forget_records()

    def rows(self, position: int, max_records: int) -> list[tuple[int, Rows]]:
        """(position, rows) from there on; empty if memory does not reach back so far."""
        if not self._groups or position < self._groups[0].first:
            return []
        found = []
        for group in self._groups:
            if position >= group.end:
                continue
            first, end = position, min(group.end, position + max_records)
            found.append((first, group.columns().slice(first - group.first, end - group.first)))
            position = end
            max_records -= end - first
            if not max_records:
                break
        return found


def to_records(runs: list[tuple[int, Rows]], streams: dict[int, Stream], max_bytes: int) -> list[Spooled]:
    """As they would be read from disk: at least one, then as many as the bytes allow."""
    records: list[Spooled] = []
    size = 0
    for first, rows in runs:
        for position, (id_, sequence, timestamp, key, value, encoded) in enumerate(
            zip(*rows, strict=True), first
        ):
            size += len(value or b"") + len(key or b"")
            if records and size > max_bytes:
                return records
            headers: Headers = decode_headers(encoded) if encoded else ()
            stream = streams[id_]
            timestamp_ms = None if timestamp == NO_TIMESTAMP else timestamp
            records.append(
                Spooled(
                    position,
                    stream.incarnation,
                    stream.topic,
                    stream.partition,
                    sequence,
                    timestamp_ms,
                    key,
                    value,
                    headers,
                )
            )
    return records
