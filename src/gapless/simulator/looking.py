"""Reading a log as nobody in the cluster can: all of it, from outside."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.core.log import Log
from gapless.simulator.history import Place, Polled
from gapless.simulator.scene import Scene
from gapless.wire.batch import parse_header
from gapless.wire.records import iterate_records

ENOUGH = 1 << 20


def records_of(log: Log, first: int = 0) -> Iterator[Polled]:
    """All records of a log from an offset on, but control records, in order."""
    offset = max(first, log.start_offset)
    while offset < log.end_offset:
        view = memoryview(log.bytes_from(offset, ENOUGH))
        position = 0
        while position < len(view):
            batch = parse_header(view, position)
            if not batch.is_control:
                for record in iterate_records(view, batch):
                    if record.offset >= offset:
                        yield Polled(record.offset, int(record.value or b"-1"))
            position += batch.size_bytes
            offset = batch.next_offset


def values_in(scene: Scene, place: Place) -> list[int]:
    """All values in the leader's log; none if nobody leads."""
    leader = scene.leader(place)
    return [] if leader is None else [record.value for record in records_of(leader.log)]
