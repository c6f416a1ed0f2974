"""The records of a spool's folder, read without opening it: beside a running producer, changing nothing.

for record in kept(folder):          # all that are there, the sent ones too, in order
    ...
unsent(folder)                       # as intervals, by incarnation
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gapless.client.formats import Interval
from gapless.client.spool.errors import SpoolFailed
from gapless.client.spool.inspect import status
from gapless.client.spool.records import Spooled
from gapless.client.spool.scan import Scan, list_segments


class Unsent(NamedTuple):
    """What the cluster has not got from a spool, by what was last noted there."""

    source: str
    intervals: dict[bytes, list[Interval]]
    """By incarnation."""


def kept(folder: str | Path, first: int = 0) -> Iterator[Spooled]:
    """Records from a position on. What its producer deletes meanwhile was sent, and is left out."""
    seen = status(folder)
    segments = list_segments(Path(folder))
    for (begins, path), following in zip(segments, [*segments[1:], None], strict=True):
        end = seen.stored if following is None else following[0]
        if end <= first:
            continue
        try:
            with Scan(path, begins, seen.incarnation) as scan:
                for block in scan.blocks(end):
                    yield from (each for each in scan.records(block) if first <= each.position < end)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SpoolFailed(f"the spool {folder} cannot be read: {error.strerror}") from error


def unsent(folder: str | Path) -> Unsent:
    """What waits in a spool."""
    seen = status(folder)
    runs: dict[tuple[bytes, str, int], list[list[int]]] = {}
    for record in kept(folder, seen.sent):
        stream = runs.setdefault((record.incarnation, record.topic, record.partition), [])
        if stream and stream[-1][1] + 1 == record.sequence:
            stream[-1][1] = record.sequence
        else:
            stream.append([record.sequence, record.sequence])
    found: dict[bytes, list[Interval]] = {}
    for (incarnation, topic, partition), pairs in runs.items():
        found.setdefault(incarnation, []).extend(Interval(topic, partition, *pair) for pair in pairs)
    return Unsent(seen.source, found)
