"""What the stores in SQL databases share: handlers, marks and offset in one transaction.

A partition's row in `gapless_offsets` has an epoch that every `take` raises. Whoever took the partition last
may write; the transaction of an earlier owner changes no row there, and is rolled back: PartitionTaken.

What is cached of a partition is only believed while every commit was answered. After one whose answer was
lost, the next call reads the row again, locked, and finds out what became of it.

Subclasses know one database: how to connect, how a transaction runs, and what its errors mean.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

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
from gapless.client.stores.progress import Mark, Progress
from gapless.client.stores.schema import Statements
from gapless.errors import UsageError

MAX_ATTEMPTS = 10
FORGET_EVERY_S = 60.0

Result = TypeVar("Result")


class Retry(Exception):
    """The database gave the transaction up (a deadlock, say) and nothing was changed: run it again."""


class CommitRefused(Exception):
    """What handlers wrote breaks a rule that the database looks at last (a deferred constraint)."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class HandlerEndsTransaction(UsageError):
    """A handler tried to end the transaction that marks, offset and effects must share."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the handler {what}, but its writes must commit together with the marks and the offset:"
            " leave the transaction open, the store ends it"
        )


class _Owned:
    """A partition that is ours; without progress, it must be read before anything is believed."""

    __slots__ = ("epoch", "progress")

    def __init__(self, epoch: int, progress: Progress | None) -> None:
        self.epoch = epoch
        self.progress = progress


class TransactionalStore(ABC):
    """A store whose handlers write to the database that keeps the marks."""

    keeps_offsets = True
    statements: Statements

    def __init__(self, dedup_by: str | DedupBy, forget_after: str | float | None) -> None:
        check_dedup_by(dedup_by)
        forget_after_s = None if forget_after is None else seconds(forget_after)
        if forget_after_s is not None and forget_after_s <= 0:
            raise UsageError(f"forget_after={forget_after} would forget at once: give a longer time")
        self._dedup_by = None if isinstance(dedup_by, str) else dedup_by
        self._forget_after_s = forget_after_s
        self._forgot_at = 0.0
        self._openings = Openings()
        self._group: str | None = None
        self._owned: dict[TopicPartition, _Owned] = {}

    # What a database must know.

    @abstractmethod
    def _prepare(self) -> None:
        """Connect and make the tables; UsageError or StoreUnavailable with what to do."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Close what is open; open(group) may follow."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Any]:
        """An open transaction, committed at the end, rolled back on an error.

        Errors of the database come out of it as StoreUnavailable; as Retry where nothing was changed and
        trying again will help; as CommitRefused where what was written breaks a rule.
        """

    def _before_waiting(self, transaction: Any) -> None:  # noqa: B027  # most have nothing to do
        """Bound the time that the next statements wait for another transaction."""

    _is_open: Callable[[Any], bool]
    """After each handler: whether the transaction is as it was. It must be quick."""

    @abstractmethod
    def _check_open(self, transaction: Any) -> None:
        """If not: HandlerEndsTransaction if the handler ended the transaction, or broke it and went on."""

    @abstractmethod
    def _check_not_ended(self, transaction: Any) -> None:
        """After a handler that raised, and after all: HandlerEndsTransaction if one ended it, or tried to."""

    @abstractmethod
    def _is_ours(self, error: Exception, transaction: Any) -> bool:
        """Whether what a handler raised is the database's trouble (it went away), not the record's."""

    @abstractmethod
    def _remember(self, transaction: Any, keys: Sequence[bytes], now_s: int) -> set[bytes]:
        """Write keys into `gapless_seen`; those that were not there before."""

    @abstractmethod
    def _write(self, transaction: Any, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement for every row."""

    # The port.

    def open(self, group: str) -> None:
        self._openings.enter(group)
        self._group = group
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._openings.leave(self._end)

    def _end(self) -> None:
        self._disconnect()
        self._owned.clear()

    def take(self, partition: TopicPartition) -> int | None:
        """The partition is ours from now on; earlier owners can no longer write."""
        key = self._key(partition)

        def run() -> _Owned:
            with self._transaction() as transaction:
                self._before_waiting(transaction)
                self._forget(transaction, key)
                epoch, next_offset = transaction.execute(self.statements.take, key).fetchall()[0]
                return _Owned(epoch, self._read_progress(transaction, key, next_offset))

        owned = self._owned[partition] = self._repeated(run)
        return owned.progress.next_offset if owned.progress else None

    def apply(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        handler: Handler,
        before_commit: BeforeCommit | None = None,
    ) -> Applied:
        """Handle the new ones in one transaction, all or none."""
        owned = self._owned.get(partition)
        if owned is None:
            raise PartitionTaken(f"{partition} is not ours: take() it before records are applied")
        progress = owned.progress
        if not records or (progress is not None and progress.is_past(records[-1].offset)):
            return Applied(0, len(records))
        try:
            return self._repeated(lambda: self._apply_once(partition, owned, records, handler, before_commit))
        except HandlerFailed:
            # An earlier owner's handler fails on what its successor did.
            self._repeated(lambda: self._check_owner(partition, owned))
            raise

    def skip(self, partition: TopicPartition, record: Record) -> None:
        """Remember a record as done without handling it."""
        self.apply(partition, [record], lambda _record, _transaction: None)

    def release(self, partition: TopicPartition) -> None:
        """The partition is no longer ours."""
        self._owned.pop(partition, None)

    # One transaction.

    def _apply_once(
        self,
        partition: TopicPartition,
        owned: _Owned,
        records: Sequence[Record],
        handler: Handler,
        before_commit: BeforeCommit | None,
    ) -> Applied:
        key = self._key(partition)
        progress, owned.progress = owned.progress, None  # believed again once the commit was answered
        new: list[Record] = []
        try:
            with self._transaction() as transaction:
                if progress is None:
                    progress = self._read_owned(transaction, partition, owned)
                if self._should_forget():
                    self._forget(transaction, key)
                new = self._select(transaction, progress, records)
                self._handle(transaction, handler, new)
                self._save(transaction, key, partition, owned, progress)
                if before_commit is not None:
                    before_commit()
        except HandlerFailed:
            if progress is not None:
                progress.rollback()
                owned.progress = progress
            raise
        except CommitRefused as refused:
            raise HandlerFailed((new or records)[0], refused.cause) from refused
        progress.commit()
        owned.progress = progress
        return Applied(len(new), len(records) - len(new))

    def _select(self, transaction: Any, progress: Progress, records: Sequence[Record]) -> list[Record]:
        """Those that are to be handled; they are noted as pending."""
        new = progress.advance_all(records)
        if self._dedup_by is None:
            return new
        keys: dict[bytes, Record] = {}
        chosen: list[Record] = []
        for record in new:
            key = key_of(self._dedup_by, record)
            if key is None:
                chosen.append(record)
            elif key not in keys:
                keys[key] = record
                chosen.append(record)
        unseen = self._remember(transaction, list(keys), int(time.time())) if keys else set()
        seen = {id(record) for key, record in keys.items() if key not in unseen}
        return [record for record in chosen if id(record) not in seen]

    def _handle(self, transaction: Any, handler: Handler, records: Sequence[Record]) -> None:
        is_open = self._is_open
        for record in records:
            try:
                handler(record, transaction)
                if not is_open(transaction):
                    self._check_open(transaction)
            except HandlerEndsTransaction:
                raise
            except Exception as error:
                self._check_not_ended(transaction)
                if self._is_ours(error, transaction):
                    raise
                raise HandlerFailed(record, error) from error
        self._check_not_ended(transaction)

    def _save(
        self,
        transaction: Any,
        key: tuple[str, str, int],
        partition: TopicPartition,
        owned: _Owned,
        progress: Progress,
    ) -> None:
        changes = progress.changes()
        now_s = int(time.time())
        swallowing = [change.mark for change in changes if change.swallows]
        if swallowing:
            rows = [(*key, mark.source, mark.incarnation, mark.first, mark.last) for mark in swallowing]
            self._write(transaction, self.statements.swallow_marks, rows)
        if changes:
            self._write(
                transaction, self.statements.write_mark, [(*key, *change.mark, now_s) for change in changes]
            )
        advanced = transaction.execute(self.statements.advance, (progress.next_offset, *key, owned.epoch))
        if advanced.rowcount != 1:
            raise self._taken(partition)

    # What is known of a partition.

    def _key(self, partition: TopicPartition) -> tuple[str, str, int]:
        if self._group is None:
            raise UsageError("the store is not open: call open(group) first")
        return (self._group, partition.topic, partition.partition)

    def _read_progress(
        self, transaction: Any, key: tuple[str, str, int], next_offset: int | None
    ) -> Progress:
        if self._dedup_by is not None:
            return Progress(next_offset, by_identity=False)
        rows = transaction.execute(self.statements.marks, key).fetchall()
        marks = [Mark(source, bytes(incarnation), first, last) for source, incarnation, first, last in rows]
        return Progress(next_offset, marks)

    def _read_owned(self, transaction: Any, partition: TopicPartition, owned: _Owned) -> Progress:
        """The progress as the database has it, if the partition is still ours."""
        key = self._key(partition)
        self._before_waiting(transaction)
        rows = transaction.execute(self.statements.owner, key).fetchall()
        if not rows or rows[0][0] != owned.epoch:
            raise self._taken(partition)
        return self._read_progress(transaction, key, rows[0][1])

    def _check_owner(self, partition: TopicPartition, owned: _Owned) -> None:
        with self._transaction() as transaction:
            self._read_owned(transaction, partition, owned)

    def _taken(self, partition: TopicPartition) -> PartitionTaken:
        return PartitionTaken(f"another consumer of group {self._group} has taken {partition}")

    def _forget(self, transaction: Any, key: tuple[str, str, int]) -> None:
        """Delete what is older than the user wants it to be kept."""
        if self._forget_after_s is None:
            return
        before = int(time.time() - self._forget_after_s)
        self._forgot_at = time.monotonic()
        if self._dedup_by is None:
            transaction.execute(self.statements.forget_marks, (*key, *key, before))
        else:
            transaction.execute(self.statements.forget_seen, (key[0], before))

    def _should_forget(self) -> bool:
        """Keys come with every record, so they are cleared out while we work; marks only when we begin."""
        if self._forget_after_s is None or self._dedup_by is None:
            return False
        return time.monotonic() - self._forgot_at > max(FORGET_EVERY_S, self._forget_after_s / 10)

    @staticmethod
    def _repeated(run: Callable[[], Result]) -> Result:
        """Run a transaction again while the database gives it up for another's sake."""
        for attempt in range(1, MAX_ATTEMPTS):
            try:
                return run()
            except Retry:
                time.sleep(random.uniform(0, 0.002 * 2**attempt))  # those who collided must not do so again
        try:
            return run()
        except Retry as given_up:
            raise StoreUnavailable(
                f"the database gave the transaction up {MAX_ATTEMPTS} times: {given_up}"
            ) from given_up
