"""Records on local disk, in order, until the cluster has them.

A record gets its position and, if it has none yet, its sequence when it is appended; it is *stored* once it is
written and synced. All that was appended meanwhile is stored by one write and one sync (group commit): by the
thread that waits for it, or else by the spool's own, a few milliseconds after the first record came. Only what
is stored can be read: what a power cut can take must never be sent.

When the disk refuses a write or a sync, no record of the group is stored, nor any that was appended behind it.
Their tickets tell the error; their positions and sequences go to the records that come next. From then on each
append waits until its record is stored, and so raises what the disk says, until one succeeds.

    spool = Spool("./spool", "orders-api")
    ticket = spool.append("orders", 0, b"...")
    spool.wait_stored(ticket)
    for record in spool.read(spool.sent): ...
    spool.note_sent(position)  # segments below it are deleted after `keep_s`, or when space is needed
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from gapless.client.formats import INCARNATION_BYTES, check_source
from gapless.client.records import Headers
from gapless.client.spool import blocks
from gapless.client.spool.blocks import Stream
from gapless.client.spool.disk import Disk
from gapless.client.spool.errors import SpoolClosed, SpoolFailed, SpoolFull, SpoolRestored
from gapless.client.spool.folder import Folder
from gapless.client.spool.group import Group
from gapless.client.spool.reading import Reader
from gapless.client.spool.records import Spooled, Ticket
from gapless.client.spool.scan import Scan
from gapless.client.spool.segments import Segments
from gapless.client.spool.tail import Tail, to_records
from gapless.errors import UsageError

StreamKey = tuple[bytes, str, int]
"""(incarnation, topic, partition): what a sequence counts in."""

LINGER_S = 0.005
MAX_PENDING_BYTES = 8 << 20
_TAIL_BYTES = 16 << 20
_LOOK_FOR_OLD_S = 60.0
_MIN_SEGMENT_BYTES = 4096
_new_ticket = tuple.__new__  # twice as fast as the class, and made for each record


class Spool:
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
        keep_s: float = 86_400,
        linger_s: float = LINGER_S,
        disk: Disk | None = None,
    ) -> None:
        if when_full not in {"refuse", "block"}:
            raise UsageError(f"a full spool cannot {when_full!r}: choose 'refuse' or 'block'")
        self._max_bytes = max_bytes
        self._when_full = when_full
        self._block_s = block_s
        self._keep_s = keep_s
        self._linger_s = linger_s
        self._disk = disk or Disk()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Something was stored or failed, sent, or closed."""
        self._work = threading.Condition(self._lock)
        self._stored_listeners: list[Callable[[int], None]] = []
        self._failed_listeners: list[Callable[[SpoolFailed], None]] = []
        self._own: dict[tuple[str, int], Stream] = {}
        self._foreign: dict[StreamKey, Stream] = {}
        self._next_stream = 0
        self._committing = False
        self._in_flight_bytes = 0
        self._writer_is_idle = False
        self._is_well = True
        self._is_closed = False
        if max_bytes is not None:
            segment_bytes = max(_MIN_SEGMENT_BYTES, min(segment_bytes, max_bytes // 8))
        self._folder = Folder(Path(folder), check_source(source), self._disk)
        self.path = self._folder.path
        self.incarnation = self._folder.about.incarnation
        self._segments = Segments(self.path, self.incarnation, self._disk, segment_bytes)
        self._open()
        self._reader = Reader(self._segments)
        self._tail = Tail(_TAIL_BYTES)
        self._pending = Group(self.stored)
        self._room = self._room_granted = 0
        self._grant_room()
        self._writer = threading.Thread(
            target=self._write_what_nobody_waits_for, name="gapless-spool", daemon=True
        )
        self._writer.start()

    def _open(self) -> None:
        try:
            hint = self._folder.hint
            streams = self._segments.open(stored_at_least=max(hint.stored, hint.sent))
            self._segments.recall_sent(hint.sent)
        except BaseException as error:
            self._segments.close()
            self._folder.close()
            if isinstance(error, OSError):
                raise SpoolFailed(f"the spool {self.path} cannot be opened: {error.strerror}") from error
            raise
        for stream in streams:
            # Those of other incarnations need not be known: who appends to them gives the sequence.
            if stream.incarnation == self.incarnation:
                self._own[stream.topic, stream.partition] = stream
            self._next_stream = max(self._next_stream, stream.id + 1)
        self.stored = self.end = self._segments.end
        self.sent = hint.sent

    # Appending

    def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        *,
        incarnation: bytes | None = None,
        sequence: int | None = None,
    ) -> Ticket:
        """Queue a record for the group commit; its sequence is the stream's next unless it has one already.

        Raises SpoolFull, SpoolClosed, and SpoolFailed while the disk is known to refuse.
        """
        size = blocks.RECORD_OVERHEAD_BYTES
        if value.__class__ is bytes:
            size += len(value)  # type: ignore[arg-type]
        elif value is not None:
            raise UsageError(f"a record's value must be bytes or None, not {type(value).__name__}")
        if key.__class__ is bytes:
            size += len(key)  # type: ignore[arg-type]
        elif key is not None:
            raise UsageError(f"a record's key must be bytes or None, not {type(key).__name__}")
        encoded_headers = b""
        if headers:
            encoded_headers = blocks.encode_headers(headers)
            size += len(encoded_headers)
        if timestamp_ms is None:
            timestamp_ms = blocks.NO_TIMESTAMP
        with self._lock:
            if size > self._room:
                self._wait_for_room(size)
            if incarnation is None:
                stream = self._own.get((topic, partition)) or self._add_own(topic, partition)
                sequence = stream.next_sequence
            else:
                stream = self._foreign_stream(incarnation, topic, partition, sequence)
            group = self._pending
            rows = group.rows
            rows.append((stream, sequence, timestamp_ms, key, value, encoded_headers))  # type: ignore[arg-type]
            stream.next_sequence = sequence + 1  # type: ignore[operator]
            self._room -= size
            position = self.end
            self.end = position + 1
            if len(rows) == 1:
                self._begin_group(group)
        ticket: Ticket = _new_ticket(Ticket, (position, sequence, group))
        if not self._is_well:
            self.wait_stored(ticket)
        return ticket

    def _begin_group(self, group: Group) -> None:
        group.since = time.monotonic()
        if self._writer_is_idle:
            self._writer_is_idle = False
            self._work.notify()

    def _add_own(self, topic: str, partition: int) -> Stream:
        stream = self._own[topic, partition] = self._new_stream(self.incarnation, topic, partition)
        return stream

    def _foreign_stream(self, incarnation: bytes, topic: str, partition: int, sequence: int | None) -> Stream:
        if sequence is None or not 0 <= sequence < 1 << 63:
            raise UsageError("a record of another incarnation needs the sequence that it was given")
        if incarnation == self.incarnation:
            raise UsageError("the spool itself gives sequences to the records of its incarnation")
        stream = self._foreign.get((incarnation, topic, partition))
        if stream is None:
            stream = self._new_stream(incarnation, topic, partition)
            self._foreign[incarnation, topic, partition] = stream
        return stream

    def _new_stream(self, incarnation: bytes, topic: str, partition: int) -> Stream:
        if len(incarnation) != INCARNATION_BYTES:
            raise UsageError(f"an incarnation has {INCARNATION_BYTES} bytes, not {len(incarnation)}")
        if not 0 < len(topic.encode()) < 1 << 16 or not 0 <= partition < 1 << 31:
            raise UsageError(f"topic {topic[:50]!r}, partition {partition}: no such partition can be")
        stream = Stream(self._next_stream, incarnation, topic, partition)
        self._next_stream += 1
        self._grant_room()
        return stream

    def next_sequence(self, topic: str, partition: int) -> int:
        """The sequence that the next record there will get."""
        stream = self._own.get((topic, partition))
        return stream.next_sequence if stream else 0

    # Room

    def _settle_room(self) -> None:
        """Book what was used of the room since it was granted."""
        self._pending.size_bytes += self._room_granted - self._room
        self._room_granted = self._room

    def _grant_room(self) -> None:
        """Say how much may be appended before somebody must look again."""
        self._settle_room()
        pending = self._pending
        room = MAX_PENDING_BYTES - pending.size_bytes
        if self._max_bytes is not None:
            room = min(room, self._free_bytes() - pending.size_bytes)
        if self._is_closed:
            room = -1
        self._room = self._room_granted = room

    def _free_bytes(self) -> int:
        """What the bound leaves for records that are not written yet; only if there is a bound."""
        streams = [*self._own.values(), *self._foreign.values()]
        head = blocks.FILE_HEADER.size + blocks.BLOCK_OVERHEAD_BYTES
        head += 2 * sum(stream.declared_bytes for stream in streams)  # in a new segment's head, or in a block
        taken = self._segments.size_bytes + self._in_flight_bytes + head + 2 * blocks.BLOCK_OVERHEAD_BYTES
        return (self._max_bytes or 0) - taken

    def _wait_for_room(self, size: int) -> None:
        """Until the record fits; the lock is held, but let go meanwhile."""
        if size > blocks.MAX_RECORD_BYTES:
            raise UsageError(
                f"a record of {size} bytes is too large: a spool takes up to {blocks.MAX_RECORD_BYTES}"
            )
        deadline = None if self._block_s is None else time.monotonic() + self._block_s
        while True:
            if self._is_closed:
                raise SpoolClosed(f"the spool {self.path} is closed")
            self._grant_room()
            if size <= self._room:
                return
            pending = self._pending
            if pending.rows and pending.size_bytes + size > MAX_PENDING_BYTES:
                self._changed.wait()  # until the disk has caught up
            elif self._max_bytes is None or size <= self._free_bytes() - pending.size_bytes:
                self._room = self._room_granted = size  # alone, a large one may pass
                return
            elif not self._give_up_sent():
                self._wait_until_sent(size, deadline)

    def _wait_until_sent(self, size: int, deadline: float | None) -> None:
        full = SpoolFull(
            f"the spool {self.path} is full: {self._segments.size_bytes} of {self._max_bytes} bytes, and none of it"
            f" can be deleted before it is sent; a record of {size} bytes was refused"
        )
        if self._when_full == "refuse" or size * 2 > (self._max_bytes or 0):
            raise full
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise full
        self._changed.wait(remaining)

    def _give_up_sent(self) -> bool:
        """Delete a segment that is only kept; whether there was one. The lock is let go meanwhile."""
        segments = self._segments
        all_sent = self.sent == self.end and self.sent > segments.all[-1].first
        roll = all_sent and len(segments.all) == 1 and not self._committing
        if not roll and (len(segments.all) < 2 or segments.all[0].sent_at_s is None):
            return False
        carried = self._carried()
        if roll:
            self._committing = True
        self._lock.release()
        try:
            if roll:
                segments.begin_next(self.sent, carried)
                segments.note_sent(self.sent)
            return segments.delete_first_if_sent()
        except OSError as error:
            raise SpoolFailed(f"the spool {self.path} cannot make room: {error.strerror}") from error
        finally:
            self._lock.acquire()
            if roll:
                self._committing = False
                self._changed.notify_all()

    # Group commit

    def _carried(self) -> list[Stream]:
        return [*self._own.values(), *self._foreign.values()]

    def wait_stored(self, ticket: Ticket, timeout: float | None = None) -> bool:
        """True once the record is on disk, False after the timeout; raises SpoolFailed if it never will be."""
        group = ticket.group
        deadline = None if timeout is None else time.monotonic() + timeout
        while not group.is_stored:
            if group.failure is not None:
                raise group.failure
            with self._lock:
                leads = not self._committing and group is self._pending
                if leads:
                    self._take_pending()
                elif not (group.is_stored or group.failure):
                    remaining = None if deadline is None else deadline - time.monotonic()
                    if remaining is not None and remaining <= 0:
                        return False
                    self._changed.wait(remaining)
            if leads:
                self._commit(group)
        return True

    def _take_pending(self) -> None:
        """The lock is held. What is appended from now on is for the next group."""
        self._settle_room()
        self._committing = True
        self._in_flight_bytes = self._pending.size_bytes
        self._pending = Group(self.end)
        self._grant_room()

    def _commit(self, group: Group) -> None:
        """Write and sync; nobody else does so meanwhile."""
        failure: SpoolFailed | None = None
        try:
            self._segments.write(group.first, group.rows, self._carried())
        except OSError as error:
            failure = SpoolFailed(
                f"the spool {self.path} could not store {len(group.rows)} records: {error.strerror or error}"
            )
        except BaseException as error:
            failure = SpoolFailed(
                f"the spool {self.path} could not store {len(group.rows)} records: {error!r}"
            )
            raise
        finally:
            self._end_commit(group, failure)

    def _end_commit(self, group: Group, failure: SpoolFailed | None) -> None:
        with self._lock:
            self._in_flight_bytes = 0
            if failure is None:
                self.stored = group.end
                self._tail.add(group)
                group.is_stored = True
                self._is_well = True
            else:
                self._take_back(group, failure)
            self._grant_room()
            if not (self._stored_listeners or self._failed_listeners):
                self._committing = False
            self._changed.notify_all()
        if self._committing:
            self._tell_listeners(failure)

    def _tell_listeners(self, failure: SpoolFailed | None) -> None:
        """In order: the next group is not committed before they have heard of this one."""
        try:
            if failure is None:
                for tell_stored in self._stored_listeners:
                    tell_stored(self.stored)
            else:
                for tell_failed in self._failed_listeners:
                    tell_failed(failure)
        finally:
            with self._lock:
                self._committing = False
                self._changed.notify_all()

    def _take_back(self, group: Group, failure: SpoolFailed) -> None:
        """As if none of what is not stored had been appended."""
        self._settle_room()
        self._is_well = False
        group.failure = self._pending.failure = failure
        self._pending = Group(self.stored)
        self.end = self.stored
        for stream in self._carried():
            stream.next_sequence = stream.stored_sequence

    def _write_what_nobody_waits_for(self) -> None:
        while True:
            with self._lock:
                group = self._next_for_writer()
                if group is None:
                    return
                self._take_pending()
            self._commit(group)

    def _next_for_writer(self) -> Group | None:
        """A group that has waited long enough; None when closed and nothing is left. The lock is held."""
        while True:
            group = self._pending
            if not group.rows:
                if self._is_closed:
                    return None
                self._writer_is_idle = True
                if not self._work.wait(_LOOK_FOR_OLD_S):
                    self._delete_old()
                self._writer_is_idle = False
                continue
            remaining = 0.0 if self._is_closed else group.since + self._linger_s - time.monotonic()
            if remaining > 0:
                self._work.wait(remaining)
            elif self._committing:
                self._changed.wait()
            else:
                return group

    def on_stored(self, listener: Callable[[int], None]) -> None:
        """Call `listener(stored)` after each group, on the thread that stored it.

        It must be quick, and must not wait for a lock that is held around append().
        """
        self._stored_listeners.append(listener)

    def on_failed(self, listener: Callable[[SpoolFailed], None]) -> None:
        """Call `listener(error)` after a group failed: its tickets tell it as `.failure`. As for on_stored."""
        self._failed_listeners.append(listener)

    # Reading

    def read(self, position: int, max_records: int = 1000, max_bytes: int = 1 << 20) -> list[Spooled]:
        """Stored records from the position on: empty at the end, else at least one."""
        with self._lock:
            stored = self.stored
            if position >= stored or max_records <= 0:
                return []
            runs = self._tail.rows(position, max_records)
        if runs:
            return to_records(runs, max_bytes)
        return self._reader.read(position, stored, max_records, max_bytes)

    def wait_for(self, position: int, timeout: float | None = None) -> bool:
        """Whether the position is stored, at the latest after the timeout; at once when the spool is closed."""
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

    def _delete_old(self) -> None:
        before = time.time() - self._keep_s
        while self._segments.delete_first_if_sent(before):
            self._grant_room()

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
            self._is_closed = True
            last = self._pending
            self._grant_room()
            self._work.notify()
            self._changed.notify_all()
        self._writer.join()
        with self._lock:
            self._changed.wait_for(lambda: not self._committing)
            self._folder.note(self.sent, self.stored)
        self._reader.close()
        self._segments.close()
        self._folder.close()
        if last.failure is not None:
            raise last.failure

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
