"""Looking at a spool without opening it: beside a running producer, without its lock, changing nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gapless.client.spool.errors import SpoolDamaged, SpoolError, SpoolFailed, SpoolOfAnother
from gapless.client.spool.folder import About, holder, is_claimed, read_about, read_hint
from gapless.client.spool.scan import Block, Scan, list_segments

_ATTEMPTS = 5
_Seen = TypeVar("_Seen")


@dataclass(frozen=True, slots=True)
class Status:
    """What a spool holds."""

    folder: str
    source: str
    incarnation: bytes
    claimed: bool
    pid: int | None
    """Of the process that has it open; 0 if it cannot be known, None if nobody has."""
    first: int
    """The oldest position that is kept."""
    sent: int
    """What was last noted as sent. The truth about it is the cluster's."""
    stored: int
    oldest_unsent_ms: int | None
    """The timestamp of the first record that is not sent."""
    segments: int
    size_bytes: int
    """Of the files, with zeros that wait to be written over."""
    torn_bytes: int
    """At the end: being written at this moment, or left by a crash and cut off at the next start."""

    @property
    def unsent(self) -> int:
        return self.stored - self.sent


@dataclass(slots=True)
class Verified:
    """What reading all of a spool found."""

    folder: str
    segments: int = 0
    blocks: int = 0
    records: int = 0
    first: int = 0
    stored: int = 0
    size_bytes: int = 0
    torn_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """Each names file and byte. None: all is as it was written."""


def status(folder: str | Path) -> Status:
    """What the folder's files tell at this moment. Reads at most the last segment and one more."""
    return _steadily(Path(folder), _status)


def verify(folder: str | Path) -> Verified:
    """Read and check every block."""
    return _steadily(Path(folder), _verify)


def _steadily(folder: Path, look: Callable[[Path, About], _Seen]) -> _Seen:
    """A running producer may delete a segment between our listing and our reading: look again then."""
    for attempt in range(_ATTEMPTS):
        about = read_about(folder)
        if about is None:
            raise SpoolOfAnother(f"there is no spool in {folder}")
        try:
            return look(folder, about)
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS - 1:
                raise SpoolFailed(f"{error.filename} is missing") from error
        except OSError as error:
            raise SpoolFailed(f"the spool {folder} cannot be read: {error.strerror}") from error
    raise SpoolFailed(f"the spool {folder} changes too quickly to be read")


def _status(folder: Path, about: About) -> Status:
    hint = read_hint(folder)  # before the segments, which only grow: so never more sent than stored
    segments = list_segments(folder)
    sizes = [path.stat().st_size for _, path in segments]
    stored, torn_bytes = _end(segments, about, max(hint.sent, hint.stored))
    return Status(
        folder=str(folder),
        source=about.source,
        incarnation=about.incarnation,
        claimed=is_claimed(folder),
        pid=holder(folder),
        first=segments[0][0] if segments else 0,
        sent=hint.sent,
        stored=stored,
        oldest_unsent_ms=_timestamp_at(segments, about, hint.sent) if hint.sent < stored else None,
        segments=len(segments),
        size_bytes=sum(sizes),
        torn_bytes=torn_bytes,
    )


def _end(segments: list[tuple[int, Path]], about: About, stored_at_least: int) -> tuple[int, int]:
    """The position where the last segment's good part ends, and how much lies behind it."""
    if not segments:
        if stored_at_least:
            raise SpoolDamaged(f"the spool had {stored_at_least} records: its segments are missing")
        return 0, 0
    first, path = segments[-1]
    with Scan(path, first, about.incarnation) as scan:
        for _ in scan.blocks():
            pass
        scan.check_end(stored_at_least)
        return scan.position, scan.torn_bytes()


def _timestamp_at(segments: list[tuple[int, Path]], about: About, position: int) -> int | None:
    holding = [segment for segment in segments if segment[0] <= position]
    if not holding:
        return None
    first, path = holding[-1]
    with Scan(path, first, about.incarnation) as scan:
        for block in scan.blocks(position + 1):
            if block.header.end > position:
                return scan.records(block)[position - block.header.first].timestamp_ms
    return None


# ------------------------------------------------------------------------------------------- verify


def _verify(folder: Path, about: About) -> Verified:
    found = Verified(str(folder))
    hint = read_hint(folder)
    segments = list_segments(folder)
    found.segments = len(segments)
    found.first = segments[0][0] if segments else 0
    sequences: dict[tuple[str, int], int] | None = None
    for index, (first, path) in enumerate(segments):
        following = segments[index + 1][0] if index + 1 < len(segments) else None
        found.size_bytes += path.stat().st_size
        try:
            scan = Scan(path, first, about.incarnation)
            sequences = _verify_segment(scan, following, sequences, found)
            if following is None:
                scan.check_end(max(hint.sent, hint.stored))
        except SpoolError as error:
            found.problems.append(str(error))
            sequences = None  # the next segment says itself where its streams go on
    if not segments and max(hint.sent, hint.stored):
        found.problems.append(f"{folder} had {max(hint.sent, hint.stored)} records: its segments are missing")
    return found


def _verify_segment(
    unopened: Scan, following: int | None, sequences: dict[tuple[str, int], int] | None, found: Verified
) -> dict[tuple[str, int], int]:
    """Check one; what the streams' next sequences are behind it."""
    with unopened as scan:
        _check_carried(scan, sequences)
        _verify_blocks(scan, following, found)
        if following is not None and scan.position != following:
            raise scan.damaged(scan.at, f"positions {scan.position} to {following - 1} are not there")
        while following is None and (good_again := scan.good_block_after()) is not None:
            ended_at = scan.at
            _verify_blocks(scan, following, found)
            if scan.at == ended_at:  # else it was written since
                raise scan.damaged(scan.at, f"what comes there is no block, but at byte {good_again} is one")
        if following is None:
            found.torn_bytes = scan.torn_bytes()
        return {
            (stream.topic, stream.partition): stream.next_sequence
            for stream in scan.streams.values()
            if stream.incarnation == scan.incarnation
        }


def _verify_blocks(scan: Scan, following: int | None, found: Verified) -> None:
    for block in scan.blocks(following):
        _check_dense(scan, block)
        scan.count_sequences(block)
        found.blocks += 1
        found.records += len(scan.records(block))
    found.stored = scan.position


def _check_carried(scan: Scan, sequences: dict[tuple[str, int], int] | None) -> None:
    """A segment's list of streams must go on where the one before ended."""
    for stream in scan.streams.values():
        if sequences is None or stream.incarnation != scan.incarnation:
            continue
        before = sequences.get((stream.topic, stream.partition), 0)
        if stream.next_sequence != before:
            raise scan.damaged(
                0, f"{stream.topic}-{stream.partition} goes on at {stream.next_sequence}, not at {before}"
            )


def _check_dense(scan: Scan, block: Block) -> None:
    """The spool's own records of each stream are numbered without a gap."""
    expected = {
        id_: stream.next_sequence
        for id_, stream in scan.streams.items()
        if stream.incarnation == scan.incarnation
    }
    for id_, sequence in zip(block.columns.streams, block.columns.sequences, strict=True):
        if id_ in expected:
            if sequence != expected[id_]:
                stream = scan.streams[id_]
                raise scan.damaged(
                    block.at, f"{stream.topic}-{stream.partition}: sequence {sequence}, not {expected[id_]}"
                )
            expected[id_] += 1
