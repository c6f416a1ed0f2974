"""The store in Redis: a mark before and after each handler. It says what it cannot know.

    store = RedisStore("redis://cache/0", expire="7d", in_doubt="redo")

What a handler does elsewhere is not one step with a mark in Redis. When a process dies between the two, the
record is *in doubt*: begun, and perhaps done. `in_doubt` chooses: `redo` it (the effect may happen twice),
`skip` it (it may be missing), or `stop` and let a person look. For effects that happen once, use SqliteStore
or PostgresStore.

Per partition there is one hash (who has it, the record that is in progress, the next offset), and per source
one sorted set of intervals, as long as nothing new of it came for `expire`. Needs the extra `redis`:
pip install 'gapless[redis]'.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

try:
    import redis
except ImportError as missing:
    from gapless.errors import UsageError as _UsageError

    raise _UsageError("RedisStore needs redis-py: run: pip install 'gapless[redis]'") from missing

from gapless.client.durations import seconds
from gapless.client.records import Record, TopicPartition
from gapless.client.stores.keys import DedupBy, check_dedup_by, key_of
from gapless.client.stores.openings import Openings
from gapless.client.stores.port import (
    Applied,
    BeforeCommit,
    Handler,
    HandlerFailed,
    PartitionTaken,
    StoreUnavailable,
)
from gapless.client.stores.redis_scripts import ABANDON, STEP, TAKE
from gapless.errors import GaplessError, UsageError

InDoubt = Literal["redo", "skip", "stop"]
MAX_SEQUENCE = (1 << 53) - 2
"""Redis counts in doubles: above this, numbers are no longer apart."""
_LONGEST_WAIT_S = 0.05


class RecordInDoubt(GaplessError):
    """Somebody began this record and never said that it was done; `in_doubt="stop"` leaves it to a person."""


class MarksForgotten(GaplessError):
    """Redis does not know what it was told: it was emptied, or restarted from an older state."""


class _Owned:
    """A partition that is ours, under a token of its own.

    `next_offset` is how far we are, `confirmed` how far Redis has said that it knows; between them lies at
    most the record that is `finished` here. The record at `in_doubt` somebody else had begun.
    """

    __slots__ = ("asked_at", "confirmed", "finished", "in_doubt", "next_offset", "token")

    def __init__(self, token: str, next_offset: int) -> None:
        self.token = token
        self.next_offset = self.confirmed = next_offset
        self.finished: Record | None = None
        self.in_doubt: int | None = None
        self.asked_at = time.monotonic()


class _Step(NamedTuple):
    """What Redis said: of the record that is done, of the one to begin, and how long to wait for it."""

    done: str
    begun: str
    wait_ms: int


class RedisStore:
    """Effects marked in Redis. The handler's second argument is None: there is no transaction to share.

    - `expire`: how long marks of a source are kept after its last record ("7d", or seconds). A record that
      is delivered again later than this is handled again.
    - `in_doubt`: `"redo"`, `"skip"` or `"stop"` for a record that somebody dead left in progress.
    - `lease`: after so long without a word, who began a record counts as dead. Longer than any handler.
    - `dedup_by`: what makes two records the same: `"identity"`, or a function that returns bytes, or None
      (one key in Redis for each).
    """

    keeps_offsets = False

    def __init__(
        self,
        url: str,
        *,
        expire: str | float,
        in_doubt: InDoubt,
        lease: str | float = 30.0,
        dedup_by: str | DedupBy = "identity",
    ) -> None:
        if in_doubt not in {"redo", "skip", "stop"}:
            raise UsageError(f"in_doubt={in_doubt!r} is unknown: choose redo, skip or stop")
        check_dedup_by(dedup_by)
        self._expire_ms = int(seconds(expire) * 1000)
        self._lease_ms = int(seconds(lease) * 1000)
        if not 0 < self._lease_ms < self._expire_ms:
            raise UsageError(f"lease={lease} must be above 0 and shorter than expire={expire}")
        try:
            self._client = redis.Redis.from_url(url, socket_timeout=10, socket_connect_timeout=5)
        except (ValueError, AttributeError) as error:  # the latter for what is no text
            raise UsageError(f"the url of RedisStore cannot be read: {error}") from error
        self._in_doubt = in_doubt
        self._dedup_by = None if isinstance(dedup_by, str) else dedup_by
        self._take_script = self._client.register_script(TAKE)
        self._step_script = self._client.register_script(STEP)
        self._abandon_script = self._client.register_script(ABANDON)
        self._openings = Openings()
        self._group: str | None = None
        self._seen_prefix = b""
        self._owned: dict[TopicPartition, _Owned] = {}

    # The port.

    def open(self, group: str) -> None:
        self._openings.enter(group)
        self._group = group
        try:
            self._prepare(group)
        except BaseException:
            self.close()
            raise

    def _prepare(self, group: str) -> None:
        # With its length: a key may hold any bytes, and must not pass for one of another group.
        self._seen_prefix = f"gapless:seen:{len(group)}:{group}:".encode()
        info = self._asked(self._client.info)
        if info.get("cluster_enabled"):
            raise UsageError(
                "RedisStore does not work with Redis Cluster: name a single server, or a sentinel's"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise UsageError(
                f"this Redis drops keys when its memory is full (maxmemory-policy {policy}), also marks:"
                " set it to noeviction, or use another server"
            )

    def take(self, partition: TopicPartition) -> int | None:
        """The partition is ours; the group's offsets tell where to begin."""
        token = secrets.token_hex(8)
        self._owned[partition] = _Owned(token, self._ask_for(partition, token))
        return None

    def apply(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        handler: Handler,
        before_commit: BeforeCommit | None = None,
    ) -> Applied:
        """Handle the new ones, each with its marks."""
        owned = self._ours(partition)
        handled = repeated = 0
        for record in records:
            try:
                is_new = record.offset >= owned.next_offset and self._begin(partition, owned, record)
                if is_new:
                    self._handle(partition, owned, handler, record)
            except (HandlerFailed, UsageError) as error:
                self._finish(partition, owned)  # without a key, no step has marked the record before
                if isinstance(error, UsageError):
                    raise
                raise HandlerFailed(error.record, error.cause, Applied(handled, repeated)) from error.cause
            if is_new:
                owned.finished = record
            owned.next_offset = max(owned.next_offset, record.offset + 1)
            handled, repeated = handled + is_new, repeated + (not is_new)
        self._finish(partition, owned)
        return Applied(handled, repeated)

    def skip(self, partition: TopicPartition, record: Record) -> None:
        """Mark a record as done without handling it."""
        owned = self._ours(partition)
        if record.offset >= owned.next_offset and self._begin(partition, owned, record):
            owned.finished = record
            owned.next_offset = record.offset + 1
        self._finish(partition, owned)

    def release(self, partition: TopicPartition) -> None:
        """The partition is no longer ours."""
        self._owned.pop(partition, None)

    def close(self) -> None:
        self._openings.leave(self._end)

    def _end(self) -> None:
        self._owned.clear()
        self._client.close()

    # One record.

    def _begin(self, partition: TopicPartition, owned: _Owned, record: Record) -> bool:
        """Whether the record is to be handled. It is in progress then; the one before it is done."""
        while True:
            # Also when asked again after an answer was lost: to Redis it is ours then, and in doubt no more.
            was_in_doubt = owned.in_doubt == record.offset
            step = self._step(partition, owned, record, force=was_in_doubt)
            if step.begun == "busy":
                time.sleep(min(step.wait_ms / 1000, _LONGEST_WAIT_S))
            elif step.begun == "doubt":
                self._check_may_go_on(partition, record)
                owned.in_doubt = record.offset
            elif step.begun == "new" and was_in_doubt and self._in_doubt == "skip":
                owned.finished = record
                return False
            else:
                return step.begun == "new"

    def _check_may_go_on(self, partition: TopicPartition, in_doubt: Record) -> None:
        if self._in_doubt == "stop":
            raise RecordInDoubt(
                f"{partition} offset {in_doubt.offset} was begun by somebody who is gone, and may be done:"
                " look, then go on with in_doubt='redo' or in_doubt='skip'"
            )

    def _handle(self, partition: TopicPartition, owned: _Owned, handler: Handler, record: Record) -> None:
        try:
            handler(record, None)
        except Exception as error:
            self._abandon(partition, owned, record)
            raise HandlerFailed(record, error) from error
        except BaseException:
            with contextlib.suppress(StoreUnavailable):  # then it is in doubt when the lease is over
                self._abandon(partition, owned, None)
            raise

    def _finish(self, partition: TopicPartition, owned: _Owned) -> None:
        if owned.finished is not None:
            self._step(partition, owned, None)

    def _abandon(self, partition: TopicPartition, owned: _Owned, failed: Record | None) -> None:
        """The record in progress failed and is as before; or it was cut off, and is in doubt at once."""
        _marks, _sequence, seen = self._marks_of(partition, failed)
        keys = [self._partition_key(partition), seen]
        self._asked(lambda: self._abandon_script(keys=keys, args=[owned.token, int(failed is not None)]))

    def _ask_for(self, partition: TopicPartition, token: str) -> int:
        key = self._partition_key(partition)
        return int(self._asked(lambda: self._take_script(keys=[key], args=[token, self._expire_ms])))

    def _step(
        self, partition: TopicPartition, owned: _Owned, begin: Record | None, *, force: bool = False
    ) -> _Step:
        """One question to Redis: the finished record is done, the next begins. Asking twice does no harm."""
        done = owned.finished
        done_marks, done_sequence, done_seen = self._marks_of(partition, done)
        begin_marks, begin_sequence, begin_seen = self._marks_of(partition, begin)
        keys = [self._partition_key(partition), done_marks, done_seen, begin_marks, begin_seen]
        arguments = [
            *(owned.token, self._lease_ms, self._expire_ms),
            *("" if done is None else done.offset, done_sequence),
            *("" if begin is None else begin.offset, begin_sequence),
            *(int(force), owned.confirmed),
        ]
        answer = self._asked(lambda: self._step_script(keys=keys, args=arguments))
        step = _Step(answer[0].decode(), answer[1].decode(), int(answer[2]))
        if "taken" in step:
            raise PartitionTaken(f"another consumer of group {self._group} has taken {partition}")
        if "missing" in step:
            self._take_again(partition, owned)
            return self._step(partition, owned, begin, force=force)
        if "forgotten" in step:
            raise self._forgotten(partition)
        self._note(owned, begin, step)
        return step

    # What is known of a partition.

    @staticmethod
    def _note(owned: _Owned, begin: Record | None, step: _Step) -> None:
        if owned.finished is not None:
            owned.confirmed = max(owned.confirmed, owned.finished.offset + 1)
            owned.finished = None
        if begin is not None and step.begun == "repeated":
            owned.confirmed = max(owned.confirmed, begin.offset + 1)
        owned.asked_at = time.monotonic()

    def _take_again(self, partition: TopicPartition, owned: _Owned) -> None:
        """Nothing of the partition is left: by age, which is agreed, or else somebody emptied Redis."""
        if (time.monotonic() - owned.asked_at) * 1000 < self._expire_ms:
            raise self._forgotten(partition)
        owned.confirmed = self._ask_for(partition, owned.token)
        owned.asked_at = time.monotonic()

    @staticmethod
    def _forgotten(partition: TopicPartition) -> MarksForgotten:
        return MarksForgotten(
            f"Redis has lost marks of {partition} that it had confirmed (emptied, or restarted without its"
            " last writes): records may be handled twice if you start again; see docs/stores.md"
        )

    def _ours(self, partition: TopicPartition) -> _Owned:
        owned = self._owned.get(partition)
        if owned is None:
            raise PartitionTaken(f"{partition} is not ours: take() it before records are applied")
        return owned

    def _partition_key(self, partition: TopicPartition) -> str:
        if self._group is None:
            raise UsageError("the store is not open: call open(group) first")
        return f"gapless:partition:{self._group}:{partition.topic}:{partition.partition}"

    def _marks_of(
        self, partition: TopicPartition, record: Record | None
    ) -> tuple[str, int | str, bytes | str]:
        """The key of the intervals and the number in them, or the record's own key; empty where none."""
        if record is None:
            return "", "", ""
        if self._dedup_by is not None:
            key = key_of(self._dedup_by, record)
            return "", "", b"" if key is None else self._seen_prefix + key
        identity = record.identity
        if identity is None or identity.sequence > MAX_SEQUENCE:
            return "", "", ""
        stream = f"{identity.incarnation.hex()}:{identity.source}"
        marks = f"gapless:marks:{self._group}:{partition.topic}:{partition.partition}:{stream}"
        return marks, identity.sequence, ""

    @staticmethod
    def _asked(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except redis.AuthenticationError as error:
            raise UsageError(f"Redis refuses the credentials in the url: {error}") from error
        except redis.RedisError as error:
            raise StoreUnavailable(f"Redis: {error}") from error
