"""The consumer: handlers that are run for each record, plain iteration, and the low level.

    from gapless.client import Consumer

    consumer = Consumer("localhost:9092", group="billing", topics=["orders"])
    consumer.run(lambda record: print(record.value))

What may be lost or repeated is chosen by one word, `semantics` (see `settings`); effects that must happen
once need a store.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaException
from confluent_kafka import TopicPartition as LibraryPartition

from gapless.client.consuming.backlog import Backlog, Work
from gapless.client.consuming.failures import DeadLetters
from gapless.client.consuming.poller import Poller
from gapless.client.consuming.processing import Counters, Processing, as_handler
from gapless.client.consuming.settings import check_number, settle
from gapless.client.consuming.signals import StopOnSignals
from gapless.client.consuming.starting import translate
from gapless.client.records import Record, TopicPartition
from gapless.client.stores.none import NoStore
from gapless.client.stores.port import Handler, Store
from gapless.errors import UsageError

_log = logging.getLogger(__name__)
_REQUEST_TIMEOUT_S = 30.0
_WATCH_S = 0.1
_Answer = TypeVar("_Answer")

_NOTHING_ASSIGNED = (
    "no partition is assigned to this consumer: assign() some, or poll until the group has given it some"
)

Partitions = Mapping[TopicPartition, int | None] | Iterable[TopicPartition]


class Consumer:
    """One member of a group, or the reader of partitions that it was told. Used once: run, then closed."""

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str | None = None,
        topics: Sequence[str] | str = (),
        semantics: str | None = None,
        store: Store | None = None,
        order: str | None = None,
        workers: int = 1,
        parallel_by: str = "partition",
        retries: int | None = None,
        backoff_ms: float = 300,
        on_failure: DeadLetters | str = "stop",
        batch_records: int = 500,
        batch_ms: float = 100,
        queue_records: int = 2000,
        queue_bytes: int = 16 * 1024 * 1024,
        commit_every_ms: float = 500,
        connect_timeout_s: float = 30,
        store_timeout_s: float = 60,
        close_timeout_s: float = 30,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """
        :param semantics: at-most-once, at-least-once (the usual), exactly-once (needs a transactional store)
        :param order: process-then-commit or commit-then-process: says the same as `semantics`, for one hop
        :param workers: threads that run handlers, in parallel by partition, or by key (order kept for each)
        :param retries: of a handler that raises, with a pause of `backoff_ms` that doubles each time; then
            `on_failure`: "stop" raises ProcessingFailed from `run`, DeadLetters(topic) goes on
        :param batch_records: at most so many records in one transaction of the store, and at most about
            `batch_ms` of work
        :param queue_records: per partition, fetched and waiting for a worker; also at most `queue_bytes`
        :param store_timeout_s: for a store that is away to come back; then `run` raises StoreUnavailable
        :param properties: librdkafka's, under its names
        """
        self._settings = settle(
            bootstrap,
            group=group,
            topics=topics,
            semantics=semantics,
            store=store,
            order=order,
            workers=workers,
            parallel_by=parallel_by,
            retries=retries,
            backoff_ms=backoff_ms,
            on_failure=on_failure,
            batch_records=batch_records,
            batch_ms=batch_ms,
            queue_records=queue_records,
            queue_bytes=queue_bytes,
            commit_every_ms=commit_every_ms,
            connect_timeout_s=connect_timeout_s,
            store_timeout_s=store_timeout_s,
            close_timeout_s=close_timeout_s,
            properties=properties,
        )
        self._backlog = Backlog(
            # Some lanes more than workers: two busy keys seldom share one.
            lanes=4 * workers if self._settings.by_key and workers > 1 else 1,
            batch_records=batch_records,
            batch_s=batch_ms / 1000,
            queue_records=queue_records,
            queue_bytes=queue_bytes,
        )
        self._poller = Poller(self._settings, self._backlog)
        self._lock = threading.Lock()
        self._started = False
        self._closed = False
        self._running = False
        self._pulled: Work | None = None
        self.counters = Counters()
        """`handled`, `repeated` (the store knew them) and `dead_lettered` records, so far."""

    # Handlers

    def run(self, handler: Callable[..., Any]) -> None:
        """Call the handler for each record, until `stop`, SIGINT or SIGTERM; then commit and leave.

        The handler takes a record, or a record and the store's open transaction. Raises ProcessingFailed when
        the handler failed for good, and other GaplessErrors when the cluster or the store does. What was
        polled before counts as processed.
        """
        with self._lock:
            if self._running:
                raise UsageError("the consumer is already running")
            self._running = True
        try:
            self._run(as_handler(handler))
        finally:
            self._running = False
        self.close()

    def _run(self, handler: Handler) -> None:
        processing = Processing(
            self._settings,
            self._backlog,
            handler,
            self.counters,
            self._poller.commit_first,
            self._poller.taken,
        )
        with StopOnSignals(self.stop):
            self._start()
            self._check_has_something()
            self._finish_pulled(done=True)
            for number in range(self._settings.workers):
                threading.Thread(
                    target=self._work, args=(processing,), name=f"gapless-worker-{number}", daemon=True
                ).start()
            # With a time, so that signals are seen.
            while not self._poller.ended.wait(_WATCH_S):
                pass

    def _work(self, processing: Processing) -> None:
        try:
            while (work := self._backlog.take()) is not None:
                processing.do(work)
        except BaseException as error:  # noqa: BLE001 - raised by `run`, in the thread of the user
            self._poller.fail(error)

    # Pulling

    def __iter__(self) -> Iterator[Record]:
        """Record after record, until `stop`. One counts as processed when the next is asked for."""
        self._pullable()
        self._start()
        self._check_has_something()
        while (work := self._next_work(None)) is not None:
            self._pulled = work
            try:
                yield from self._one_by_one(work)
            finally:
                if self._pulled is work:
                    self._finish_pulled(done=False)
        self._raise_failure()

    def _one_by_one(self, work: Work) -> Iterator[Record]:
        for record in work.records:
            if self._pulled is not work or work.holding.gone or self._poller.stopping:
                return
            work.given += 1
            yield record
            if self._pulled is work:
                self._backlog.progress(work)
                self.counters.handled += 1

    def poll(self, timeout_s: float = 1.0) -> list[Record]:
        """Some records of one partition. They count as processed when the next are asked for."""
        self._pullable()
        self._start()
        self._finish_pulled(done=True)
        work = self._next_work(timeout_s)
        if work is None:
            self._raise_failure()
            return []
        work.given = len(work.records)
        self._pulled = work
        return list(work.records)

    def _next_work(self, timeout_s: float | None) -> Work | None:
        """That may be handled: after the commit, if it comes first."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            # In short waits: a signal's handler must be able to stop the thread that waits here.
            try:
                work = self._backlog.take(_WATCH_S if rest is None else min(rest, _WATCH_S))
            except Exception as error:
                self._poller.fail(error)
                raise
            if work is None:
                if self._poller.stopping or rest == 0.0:
                    return None
            elif not self._settings.commit_first or self._poller.commit_first(
                work.holding, work.records[-1].offset + 1
            ):
                if not self._settings.commit_first:
                    # Committed ones must be handed out, whatever happens: never more than one at a time.
                    work.lane.batch_records = min(self._settings.batch_records, work.lane.batch_records * 2)
                return work
            else:
                self._backlog.finish(work)

    def _finish_pulled(self, *, done: bool) -> None:
        """What the user has got is done, or waits again; what of it was not handed out yet waits again."""
        work, self._pulled = self._pulled, None
        if work is not None:
            if done:
                self.counters.handled += work.given - work.done
                work.done = work.given
            self._backlog.finish(work)

    def _pullable(self) -> None:
        if type(self._settings.store) is not NoStore:
            raise UsageError("with a store, use run(handler): the handler must be part of its transaction")
        if self._running:
            raise UsageError("the consumer is running a handler")

    def _check_has_something(self) -> None:
        if not self._settings.topics and not self._backlog.holdings():
            self.close()
            raise UsageError("there is nothing to read: give topics=, or assign() partitions first")

    # Partitions and offsets of one's own

    def assign(self, partitions: Partitions) -> None:
        """Read exactly these partitions: from the offset given for each, else from the group's.

        There is no sharing: whoever assigns decides who reads what.
        """
        if self._settings.topics:
            raise UsageError("the group shares out the topics: leave out topics= to assign partitions")
        given = dict(partitions) if isinstance(partitions, Mapping) else dict.fromkeys(partitions)
        begin = OFFSET_BEGINNING if self._settings.group is None else None
        starts = {
            _partition(each): begin if start is None else _place(start) for each, start in given.items()
        }
        self._start()
        self._finish_pulled(done=True)
        self._call(lambda: self._poller.assign(starts))

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are ours now."""
        return sorted(holding.partition for holding in self._backlog.holdings())

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on from there. What waits of the partition is dropped; the group's offset follows."""
        place, start = _partition(partition), _place(offset)
        self._finish_pulled(done=True)
        self._call(lambda: self._poller.seek(place, start))

    def rewind(
        self, partition: TopicPartition | None = None, *, records: int | None = None, to_ms: int | None = None
    ) -> None:
        """Back to the beginning, by some offsets, or to a time; of one partition, or of all that are ours."""
        if records is not None and to_ms is not None:
            raise UsageError("rewind by records, or to a time: give one of them")
        for name, number in {"records": records, "to_ms": to_ms}.items():
            if number is not None:
                check_number(name, number, whole=True)
        wanted = None if partition is None else _partition(partition)
        self._finish_pulled(done=True)
        for each in self._call(self._all_ours) if wanted is None else [wanted]:
            if to_ms is not None:
                offset = self._offset_at(each, to_ms)
            else:
                low, _high = self._watermarks(each)
                position = self.position(each)
                offset = low if records is None else max(low, (position or low) - records)
            self.seek(each, offset)

    def _all_ours(self) -> list[TopicPartition]:
        """Asked between two polls: in a poll, one may be gone for a moment."""
        ours = self.assignment()
        if not ours:
            raise UsageError(_NOTHING_ASSIGNED)
        return ours

    def position(self, partition: TopicPartition) -> int | None:
        """The first offset that is not processed; None before anything is known."""
        holding = self._backlog.get(partition)
        if holding is None:
            raise UsageError(f"{partition} is not assigned to this consumer")
        return holding.target if holding.waiting and holding.target is not None else holding.tracker.position

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Tell the group what is processed, or these offsets, and wait until it knows.

        For partitions whose offsets are given, nothing is committed automatically any more.
        """
        if self._settings.group is None:
            raise UsageError("without a group there is nobody to commit to: give group=")
        self._start()
        self._finish_pulled(done=True)
        if offsets is None:
            self._call(self._poller.commit_done_now)
            return
        told = {_partition(each): _offset(offset) for each, offset in offsets.items()}
        self._call(lambda: self._poller.commit(told))

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int | None]:
        """What the group knows."""
        asked = list(self.assignment() if partitions is None else partitions)
        self._start()
        wanted = [LibraryPartition(*each) for each in asked]
        found = self._call(lambda: self._poller.consumer.committed(wanted, _REQUEST_TIMEOUT_S))
        return {
            TopicPartition(each.topic, each.partition): each.offset if each.offset >= 0 else None
            for each in found
        }

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets are in each partition behind what is processed."""
        behind = {}
        for partition in self.assignment():
            low, high = self._watermarks(partition)
            position = self.position(partition)
            if position is None:
                position = self.committed([partition])[partition] if self._settings.group else low
            behind[partition] = max(0, high - (low if position is None else max(low, position)))
        return behind

    def _watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        return self._call(
            lambda: self._poller.consumer.get_watermark_offsets(
                LibraryPartition(*partition), timeout=_REQUEST_TIMEOUT_S
            )
        )

    def _offset_at(self, partition: TopicPartition, time_ms: int) -> int:
        wanted = [LibraryPartition(partition.topic, partition.partition, time_ms)]
        found = self._call(lambda: self._poller.consumer.offsets_for_times(wanted, _REQUEST_TIMEOUT_S))[0]
        return found.offset if found.offset >= 0 else self._watermarks(partition)[1]

    # Beginning and ending

    def _start(self) -> None:
        with self._lock:
            if self._closed:
                raise UsageError("the consumer is closed: make a new one")
            if self._started:
                return
            self._poller.start()
            self._started = True

    def _call(self, command: Callable[[], _Answer]) -> _Answer:
        if not self._started and not self._closed:
            raise UsageError(_NOTHING_ASSIGNED)
        try:
            return self._poller.call(command)
        except KafkaException as error:
            raise translate(error, self._settings) from error

    def stop(self) -> None:
        """End `run` or the iteration; from any thread, also from a handler. What is begun is finished."""
        self._poller.stop()

    def close(self) -> None:
        """Commit what is processed, leave the group. Raises what has stopped the consumer, if that is new."""
        with self._lock:
            first, self._closed = not self._closed, True
        self._finish_pulled(done=False)
        self._poller.stop()
        if self._started:
            self._poller.join()
        if first:
            self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self._poller.failure
        if failure is not None:
            self._closed = True
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as second:  # noqa: BLE001 - the first error is the one to see
            _log.warning("while closing after an error: %s", second)


def _partition(given: object) -> TopicPartition:
    """What names a partition: TopicPartition("orders", 0), or just the pair."""
    if isinstance(given, tuple) and len(given) == 2:
        topic, number = given
        if isinstance(topic, str) and isinstance(number, int) and not isinstance(number, bool):
            return TopicPartition(topic, number)
    raise UsageError(f"{given!r} is no partition: give TopicPartition(topic, number)")


def _place(given: object) -> int:
    """An offset to go on from: a number, or one of librdkafka's words for both ends."""
    return given if given in (OFFSET_BEGINNING, OFFSET_END) else _offset(given)


def _offset(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 1 << 63:
        raise UsageError(f"{given!r} is no offset: give a whole number, 0 or more")
    return given
