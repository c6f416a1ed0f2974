"""Records on local disk, in order, until the cluster has them.

A record gets its position and, if it has none yet, its sequence when it is appended; it is *stored* once it
is written and synced. Only what is stored can be read: what a power cut can take must never be sent.

    spool = Spool("./spool", "orders-api")
    ticket = spool.append("orders", 0, b"...")
    spool.wait_stored(ticket)
    for record in spool.read(spool.sent): ...
    spool.note_sent(position)  # segments below it are deleted after `keep_s`, or when space is needed
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gapless.client.formats import check_source
from gapless.client.spool.commit import LINGER_S, GroupCommit
from gapless.client.spool.disk import Disk
from gapless.client.spool.errors import SpoolClosed, SpoolFailed, SpoolRestored
from gapless.client.spool.folder import Folder
from gapless.client.spool.reading import Reader
from gapless.client.spool.records import Spooled
from gapless.client.spool.room import Room
from gapless.client.spool.scan import Scan
from gapless.client.spool.segments import Segments
from gapless.client.spool.streams import StreamKey, Streams
from gapless.client.spool.tail import to_records

_MIN_SEGMENT_BYTES = 4096


class Spool(GroupCommit):
    """One source's records. For any thread; one process at a time."""

    def __init__(
        self,
        folder: str | Path,
        source: str,
        *,
        max_bytes: int | None = None,
        when_full: str = "refuse",
        block_s: float | None = None,
        segment_bytes: int = 64 << 20,
        prepare_bytes: int = 256 << 10,
        keep_s: float = 86_400,
        linger_s: float = LINGER_S,
        disk: Disk | None = None,
    ) -> None:
        """Open the folder, or begin a new one.

        `max_bytes` bounds what is on disk, sent or not; a full spool refuses records, or blocks (for
        `block_s`) until enough is sent. Segments that were sent are kept for `keep_s`, unless the bound needs
        their space. Without a bound, a file is longer than its records by up to `prepare_bytes` of zeros:
        small groups are on disk sooner when they write over them. A group that nobody waits for is written
        after `linger_s`.
        """
        room = Room(max_bytes, when_full, block_s)
        if max_bytes is not None:
            segment_bytes = max(_MIN_SEGMENT_BYTES, min(segment_bytes, max_bytes // 8))
            prepare_bytes = 0  # it would count as well
        disk = disk or Disk()
        self._folder = Folder(Path(folder), check_source(source), disk)
        self.incarnation = self._folder.about.incarnation
        segments = Segments(self._folder.path, self.incarnation, disk, segment_bytes, prepare_bytes)
        streams = Streams(self.incarnation)
        hint = self._folder.hint
        try:
            streams.recall(segments.open(stored_at_least=max(hint.stored, hint.sent)))
            segments.recall_sent(hint.sent)
        except BaseException as error:
            segments.close()
            self._folder.close()
            if isinstance(error, OSError):
                raise SpoolFailed(f"the spool {folder} cannot be opened: {error.strerror}") from error
            raise
        super().__init__(segments, streams, room, keep_s=keep_s, linger_s=linger_s)
        self.sent = hint.sent
        self._reader = Reader(segments)
        self._writer.start()

    # Reading

    def read(self, position: int, max_records: int = 1000, max_bytes: int = 1 << 20) -> list[Spooled]:
        """Stored records from the position on: empty at the end, else at least one."""
        with self._lock:
            stored = self.stored
            if position >= stored or max_records <= 0:
                return []
            runs = self._tail.rows(position, max_records)
        if runs:
            return to_records(runs, self._streams.by_id, max_bytes)
        return self._reader.read(position, stored, max_records, max_bytes)

    def wait_for(self, position: int, timeout: float | None = None) -> bool:
        """Whether the position is stored, at the latest after the timeout; at once when closed."""
        with self._lock:
            self._changed.wait_for(lambda: self.stored > position or self._is_closed, timeout)
            return self.stored > position

    def sequences_at(self, position: int) -> dict[StreamKey, int]:
        """The next sequence of each stream at a position: what all records before it add up to."""
        segment = self._segments.holding(position)
        with Scan(segment.path, segment.first, self.incarnation) as scan:
            for block in scan.blocks(position):
                scan.count_sequences(block, min(block.header.count, position - block.header.first))
            if scan.position < position:
                raise scan.damaged(scan.at, f"the records from position {scan.position} on are not there")
            return {
                (each.incarnation, each.topic, each.partition): each.next_sequence
                for each in scan.streams.values()
            }

    # What was sent

    @property
    def claimed(self) -> bool:
        """Whether the position of this spool has been committed on the cluster once."""
        return self._folder.is_claimed

    def note_claimed(self) -> None:
        self._folder.claim()

    def note_sent(self, position: int) -> None:
        """The cluster has all below the position. Raises SpoolRestored if that is more than was stored."""
        with self._lock:
            if self._is_closed:
                raise SpoolClosed(f"the spool {self.path} is closed")
            if position > self.stored:
                raise SpoolRestored(
                    f"the cluster has {position} records of the spool {self.path}, which has stored only"
                    f" {self.stored}: it is an old copy; use the newest, or let a new folder begin"
                )
            if position <= self.sent:
                return
            self._segments.note_sent(position)
            self._folder.note(position, self.stored)
            self.sent = position
            self._tail.forget_below(position)
            self._delete_old()
            self._changed.notify_all()

    # Seals

    def read_seals(self) -> list[bytes]:
        """Return the seals that `keep_seals` stored last."""
        return self._folder.read_seals()

    def keep_seals(self, seals: Sequence[bytes]) -> None:
        """Store seals durably in place of the last ones. None are left of an empty sequence.

        They are for the next producer with this folder. Raises SpoolFailed, SpoolClosed.
        """
        with self._lock:
            if self._is_closed:
                raise SpoolClosed(f"the spool {self.path} is closed")
            self._folder.keep_seals(seals)

    # The rest

    @property
    def first(self) -> int:
        """The oldest position that is still here, sent or not."""
        return self._segments.first

    @property
    def size_bytes(self) -> int:
        """On disk: what waits to be sent and what is kept."""
        return self._segments.size_bytes

    @property
    def cut_bytes(self) -> int:
        """How much of a torn write, never reported as stored, was cut off on opening."""
        return self._segments.cut_bytes

    def close(self) -> None:
        """Store what is pending, and let the folder go. Raises SpoolFailed if that could not be stored."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = self._room.is_shut = True
            last = self._pending
            self._grant_room()
            self._ring()
            self._changed.notify_all()
        self._writer.join()
        self._folder.note(self.sent, self.stored)
        self._reader.close()
        self._segments.close()
        self._folder.close()
        if last.failure is not None:
            raise last.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
