"""Group commit: any thread appends, one at a time writes, and one sync is for all that came meanwhile.

A group begins with the first record that is appended to it and ends when it is taken to be written: at once
if somebody waits for it, else a few milliseconds later. Whoever waits writes it, if nobody is writing: that
saves two changes of threads. But not on the main thread, where an interrupt (Ctrl-C) could tear the commit:
there, and for what nobody waits for, the spool has a writer of its own.

When the disk refuses a write or a sync, no record of the group is stored, nor any that was appended behind
it. Their tickets tell the error; their positions and sequences go to the records that come next. From then on
each append waits until its record is stored, and so raises what the disk says, until one succeeds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from gapless.client.records import Headers
from gapless.client.spool.blocks import NO_TIMESTAMP, RECORD_OVERHEAD_BYTES, Rows, Stream, encode_headers
from gapless.client.spool.errors import SpoolClosed, SpoolFailed
from gapless.client.spool.group import Group
from gapless.client.spool.records import Ticket, Tickets
from gapless.client.spool.room import Room
from gapless.client.spool.segments import Segments
from gapless.client.spool.streams import Streams
from gapless.client.spool.tail import Tail
from gapless.errors import UsageError

LINGER_S = 0.005
_LOOK_FOR_OLD_S = 60.0
_TAIL_BYTES = 16 << 20
_ROLL = Group(-1)
_log = logging.getLogger(__name__)


def _may_write() -> bool:
    """Whether no interrupt can come to the thread that asks."""
    return threading.current_thread() is not threading.main_thread()


def _not_bytes(what: str, given: object) -> UsageError:
    return UsageError(f"a record's {what} must be bytes or None, not {type(given).__name__}")


def _size_of(what: str, given: tuple[bytes | None, ...]) -> int:
    """Of all of them, if each is bytes or None."""
    types = set(map(type, given))
    if types == {bytes}:
        return sum(map(len, given))  # type: ignore[arg-type]
    for each in given:
        if each is not None and each.__class__ is not bytes:
            raise _not_bytes(what, each)
    return sum(map(len, filter(None, given)))


def _stamp(timestamp_ms: int | None) -> int:
    if timestamp_ms is None:
        return NO_TIMESTAMP
    if timestamp_ms.__class__ is not int or not -1 << 62 < timestamp_ms < 1 << 62:
        raise UsageError(f"a record's timestamp is a number of milliseconds, not {timestamp_ms!r}")
    return timestamp_ms


class GroupCommit:
    """The writing half of a spool."""

    def __init__(
        self, segments: Segments, streams: Streams, room: Room, *, keep_s: float, linger_s: float
    ) -> None:
        self._segments = segments
        self._streams = streams
        self._own = streams.own
        self._room = room
        self._keep_s = keep_s
        self._linger_s = linger_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Something was stored or failed, sent, deleted or closed."""
        self._bell = threading.Lock()
        """Wakes the writer when it is released; only with the lock held."""
        self._bell.acquire()
        self._writer_is_idle = False
        """It must be woken for the next record."""
        self._is_busy = False
        """Somebody is writing."""
        self._must_roll = False
        self._is_well = True
        self._is_closed = False
        self._stored_listeners: list[Callable[[int], None]] = []
        self._failed_listeners: list[Callable[[SpoolFailed], None]] = []
        self.path = segments.folder
        self.stored = segments.end
        """Where the records end that are on disk: the position of the next one."""
        self.sent = 0
        self._tail = Tail(_TAIL_BYTES)
        self._pending = Group(self.stored)
        self._grant_room()
        self._writer = threading.Thread(target=self._write_groups, name="gapless-spool", daemon=True)

    # Appending

    def append(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        incarnation: bytes | None = None,
        sequence: int | None = None,
    ) -> Ticket:
        """Queue a record for the group commit; its sequence is the stream's next unless it has one already.

        Raises SpoolFull, SpoolClosed, and SpoolFailed while the disk is known to refuse.
        """
        size = RECORD_OVERHEAD_BYTES
        if value.__class__ is bytes:
            size += len(value)
        elif value is not None:
            raise _not_bytes("value", value)
        if key is not None:
            if key.__class__ is not bytes:
                raise _not_bytes("key", key)
            size += len(key)
        encoded = b""
        if headers:
            encoded = encode_headers(headers)
            size += len(encoded)
        stamp = NO_TIMESTAMP if timestamp_ms is None else _stamp(timestamp_ms)
        ticket = Ticket()
        with self._lock:
            if incarnation is None and sequence is None:
                stream = self._own.get((topic, partition)) or self._add_own(topic, partition)
            else:
                stream = self._streams.foreign(incarnation, topic, partition, sequence)
                self._grant_room()
            group = self._pending
            if size > group.granted_bytes:
                group = self._wait_for_room(size)
            number = stream.next_sequence if sequence is None else sequence
            rows = group.rows
            row = (stream.id, number, stamp, key, value, encoded)
            ticket.group = group
            ticket.sequence = number
            ticket.position = group.rows_at + len(rows)
            # No call between these two: an interrupt can come only after both.
            stream.next_sequence = number + 1
            rows.append(row)
            group.granted_bytes -= size
            if self._writer_is_idle:
                self._wake_for(group)
        if not self._is_well:
            self.wait_stored(ticket)
        return ticket

    def append_many(
        self,
        topic: str,
        partitions: int | Sequence[int],
        values: Iterable[bytes | None],
        keys: Iterable[bytes | None] | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Sequence[Ticket]:
        """Queue records that are stored together or not at all; much quicker than a call for each.

        They follow each other in the spool, in one partition or each in its own, and have the same headers
        and timestamp. Raises what `append` does, and has then queued none of them.
        """
        values = tuple(values)
        count = len(values)
        if not count:
            return []
        if not isinstance(partitions, int) and len(partitions) != count:
            raise UsageError(f"{count} values came with {len(partitions)} partitions: give one for each")
        encoded = encode_headers(headers)
        size = count * (RECORD_OVERHEAD_BYTES + len(encoded)) + _size_of("value", values)
        if keys is not None:
            keys = tuple(keys)
            if len(keys) != count:
                raise UsageError(f"{count} values came with {len(keys)} keys: give a key, or None, for each")
            size += _size_of("key", keys)
        stamp = _stamp(timestamp_ms)
        with self._lock:
            for partition in {partitions} if isinstance(partitions, int) else set(partitions):
                if (topic, partition) not in self._own:
                    self._add_own(topic, partition)
            group = self._pending
            if size > group.granted_bytes:
                group = self._wait_for_room(size)
            ids, sequences, following = self._streams.next_of(topic, partitions, count)
            batch = Rows(
                ids, sequences, (stamp,) * count, keys or (None,) * count, values, (encoded,) * count
            )
            tickets = Tickets(group, group.end, sequences)
            group.add(batch, following)
            group.granted_bytes -= size
            if self._writer_is_idle:
                self._wake_for(group)
        if not self._is_well:
            self.wait_stored(tickets[-1])
        return tickets

    def _add_own(self, topic: str, partition: int) -> Stream:
        stream = self._streams.add_own(topic, partition)
        self._grant_room()
        return stream

    def _wake_for(self, group: Group) -> None:
        self._writer_is_idle = False
        group.since = time.monotonic()
        self._ring()

    @property
    def end(self) -> int:
        """The position that the next record will get."""
        return self._pending.end

    @property
    def has_own(self) -> bool:
        """Whether there was ever a record that the spool gave its sequence to."""
        return bool(self._own)

    def next_sequence(self, topic: str, partition: int) -> int:
        """The sequence that the next record there will get."""
        stream = self._own.get((topic, partition))
        return stream.next_sequence if stream else 0

    def wait_stored(self, ticket: Ticket, timeout: float | None = None) -> bool:
        """True once the record is on disk, False after the timeout; raises SpoolFailed if it never will be.

        With a timeout of 0 it only asks the writer not to linger.
        """
        group = ticket.group
        if not group.is_stored:
            with self._lock:
                leads = group is self._pending and not self._is_busy and timeout is None and _may_write()
                if leads:
                    self._take_pending()
                elif group is self._pending and not group.is_urgent:
                    group.is_urgent = True
                    self._ring()
            if leads:
                self._commit(group)
                self._leave_the_rest()
            elif timeout is None:
                group.wait()
            elif not self._wait_settled(group, timeout):
                return False
            if group.failure is not None:
                raise group.failure
        return True

    def _wait_settled(self, group: Group, timeout: float) -> bool:
        # Not at the group's door: an interrupt after a timed passage would leave it shut for the others.
        with self._lock:
            return self._changed.wait_for(lambda: group.is_settled, timeout)

    def _leave_the_rest(self) -> None:
        """What came meanwhile is the writer's; it is awake, and needs to be told only of what is urgent.

        It can be asked without the lock: whoever makes it urgent later rings, and finds nobody busy.
        """
        if self._pending.is_urgent or self._is_closed or self._must_roll:
            with self._lock:
                self._ring()

    def _ring(self) -> None:
        """Wake the writer; the lock is held."""
        if self._bell.locked():
            self._bell.release()

    def on_stored(self, listener: Callable[[int], None]) -> None:
        """Call `listener(stored)` after each group, on the thread that stored it.

        It must be quick, and must not wait for a lock that is held around append().
        """
        self._stored_listeners.append(listener)

    def on_failed(self, listener: Callable[[SpoolFailed], None]) -> None:
        """Call `listener(error)` after a group failed: its tickets tell it as `.failure`. As on_stored."""
        self._failed_listeners.append(listener)

    # Room

    def _grant_room(self) -> None:
        self._room.grant(self._pending, self._segments, self._streams)

    def _wait_for_room(self, size: int) -> Group:
        """Until the record fits, and in which group; the lock is held, but let go meanwhile."""
        deadline = self._room.deadline()
        while True:
            if self._is_closed:
                raise SpoolClosed(f"the spool {self.path} is closed")
            self._grant_room()
            if self._room.fits(size, self._pending):
                return self._pending
            if not self._room.is_bounded_for(size):
                self._pending.is_urgent = True  # only the disk must catch up
                self._ring()
                self._changed.wait()
            elif self._room.never_fits(size) or not self._give_up_sent():
                self._changed.wait(self._room.wait_s(size, deadline, self.path, self._segments.size_bytes))

    @property
    def may_block(self) -> bool:
        """Whether append() may have to wait until something was sent."""
        return self._room.may_block

    def refuse_when_full(self) -> None:
        """Nobody is to wait for room any more."""
        with self._lock:
            self._room.refuse_when_full()
            self._changed.notify_all()

    def _give_up_sent(self) -> bool:
        """Delete a segment that is only kept, or have it done soon; whether there is one."""
        segments = self._segments
        segments.note_sent(self.sent)  # the last one may have ended since
        if self._delete_sent(before_s=None):
            return True
        if len(segments.all) > 1:  # one that began at this very moment: look again
            return segments.all[0].sent_at_s is None and segments.all[1].first <= self.sent
        if self.sent >= self.stored > segments.first:
            self._must_roll = True
            self._ring()
            self._changed.wait()
            return len(segments.all) > 1
        return False

    def _delete_sent(self, before_s: float | None) -> bool:
        """The oldest segment, if it was sent (before that time); whether one was deleted."""
        try:
            deleted = self._segments.delete_first_if_sent(before_s)
        except OSError as error:
            _log.warning("the spool %s could not delete a segment: %s", self.path, error)
            return False
        if deleted:
            self._grant_room()
            self._changed.notify_all()
        return deleted

    def _delete_old(self) -> None:
        while self._delete_sent(time.time() - self._keep_s):
            pass

    # The writer

    def _write_groups(self) -> None:
        while (group := self._next_group()) is not None:
            if group is _ROLL:
                self._roll()
            else:
                self._commit(group)

    def _next_group(self) -> Group | None:
        """A group whose time has come, or _ROLL to begin a new segment; None when closed.

        While others write their groups themselves, it looks now and then for what is left over. So nobody has
        to wake it for each group: a change of threads takes longer than all the rest but the disk.
        """
        stored_before = -1
        while True:
            with self._lock:
                group = self._pending
                if self._is_busy:
                    wait_s = self._linger_s
                elif self._must_roll and not self._is_closed:
                    self._is_busy = True
                    return _ROLL
                elif group.end > group.first:
                    due = self._is_closed or group.is_urgent
                    wait_s = 0.0 if due else group.since + self._linger_s - time.monotonic()
                    if wait_s <= 0:
                        return self._take_pending()
                elif self._is_closed:
                    return None
                elif self.stored != stored_before:
                    stored_before, wait_s = self.stored, self._linger_s
                else:
                    wait_s = _LOOK_FOR_OLD_S
                    self._writer_is_idle = True
                    self._delete_old()
            self._bell.acquire(timeout=wait_s)
            self._writer_is_idle = False

    def _take_pending(self) -> Group:
        """What is appended from now on is for the next group. The lock is held."""
        group = self._pending
        self._is_busy = True
        self._room.take(group)
        self._pending = Group(group.end)
        self._pending.since = time.monotonic()
        self._grant_room()
        return group

    def _commit(self, group: Group) -> None:
        size_bytes, failure = self._write(group)
        with self._lock:
            self._room.written()
            if failure is None:
                self._segments.grow(size_bytes)
                self.stored = group.end
                if self._segments.all[-1].first == group.first:  # one ended: it may have been sent already
                    self._segments.note_sent(self.sent)
                self._tail.add(group)
                self._is_well = True
            else:
                self._take_back(failure)
            group.settle(failure)
            self._grant_room()
            self._changed.notify_all()
        self._tell_listeners(failure)
        self._is_busy = False

    def _write(self, group: Group) -> tuple[int, SpoolFailed | None]:
        """How much was written, or why it failed. Nothing is raised: others wait for this group too."""
        try:
            return self._segments.write(group.first, group.columns(), self._streams), None
        except OSError as error:
            reason = error.strerror or str(error)
        except Exception as error:  # noqa: BLE001 - a mistake of ours, or no memory
            _log.exception("the spool %s failed to write", self.path)
            self._segments.abandon_last()
            reason = repr(error)
        count = group.end - group.first
        return 0, SpoolFailed(f"the spool {self.path} could not store {count} records: {reason}")

    def _take_back(self, failure: SpoolFailed) -> None:
        """As if none of what is not stored had been appended."""
        self._is_well = False
        pending = self._pending
        self._pending = Group(self.stored)
        self._streams.take_back()
        self._room.take_back()
        pending.settle(failure)

    def _tell_listeners(self, failure: SpoolFailed | None) -> None:
        try:
            if failure is None:
                for tell_stored in self._stored_listeners:
                    tell_stored(self.stored)
            else:
                for tell_failed in self._failed_listeners:
                    tell_failed(failure)
        except Exception:  # noqa: BLE001 - whatever it is, the writer must go on for the others
            _log.exception("a listener of the spool %s failed", self.path)

    def _roll(self) -> None:
        """Go on in a new segment, so that the last one, which was sent, can be deleted."""
        try:
            self._segments.begin_next(self.stored, self._streams.all())
            self._segments.note_sent(self.sent)
        except OSError as error:
            _log.warning("the spool %s could not begin a segment: %s", self.path, error)
        with self._lock:
            self._must_roll = self._is_busy = False
            self._changed.notify_all()
