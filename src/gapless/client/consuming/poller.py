"""The thread that talks to the cluster: it fetches, keeps the membership, commits, and hands partitions over.

It never runs a handler, so it polls on however slow they are: what has no room is paused. Nobody else calls
librdkafka's consumer: its calls exclude each other without being fair, so that one could wait for ever beside
a thread that polls. What others want comes as commands, between two polls.

Handing over. When partitions are revoked, what waits is forgotten, what is being handled may end (for at most
half of max.poll.interval.ms), and what is done is committed before the group goes on. When they are lost
there is nothing to commit: somebody else has them. A partition that comes back while a handler of its
earlier time is still at work waits for that.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as LibraryPartition

from gapless.client.consuming.backlog import Backlog, Holding
from gapless.client.consuming.outages import PAUSE_S
from gapless.client.consuming.settings import Settings
from gapless.client.consuming.starting import (
    check_offset,
    check_partitions,
    check_topics,
    is_hopeless,
    is_of_rebalance,
    new_consumer,
    subscribe,
    translate,
)
from gapless.client.records import TopicPartition
from gapless.client.stores.port import StoreUnavailable
from gapless.errors import GaplessError, UsageError

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

_FETCH_RECORDS = 5000
_POLL_S = 0.1
_FULL_FOR_S = 0.5
"""How long to wait for room before pausing: librdkafka forgets what it has prefetched of what is paused."""
_RETAKE_AFTER_S = 0.5
_HANDLING_S = 0.01
"""How long to wait at a time for workers that may want something."""
_COMMAND_TIMEOUT_S = 60.0
_WATERMARKS_TIMEOUT_S = 10.0
_SEEK_EVERY_S = 0.1
"""Less than the 0.5 s after which librdkafka repeats an offset lookup whose response came too late."""

_FirstCommit = tuple[Holding, int, "Future[bool]"]


def _library(partition: TopicPartition, offset: int) -> LibraryPartition:
    return LibraryPartition(partition.topic, partition.partition, offset)


def _ours(partition: LibraryPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


class Poller:
    """Started with `start`; ends by `stop`, or by itself when something is hopeless: see `failure`."""

    def __init__(self, settings: Settings, backlog: Backlog) -> None:
        self._settings = settings
        self._store = settings.store
        self._backlog = backlog
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._first_commits: queue.SimpleQueue[_FirstCommit] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self._last_error: KafkaError | None = None
        self._next_commit = 0.0
        self._patience_s = settings.max_poll_s / 2
        """For handlers to end when their partitions are to be handed over."""
        self._consumer: Consumer | None = None
        self._thread = threading.Thread(target=self._run, name="gapless-poller", daemon=True)

    @property
    def consumer(self) -> Consumer:
        """librdkafka's, while it is open."""
        if self._consumer is None:
            raise UsageError("the consumer is closed")
        return self._consumer

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    # What other threads call

    def start(self) -> None:
        """Raises Unreachable, or UsageError for topics that are not there, before anything is begun."""
        self._consumer = new_consumer(
            {**self._settings.properties, "error_cb": self._on_error, "on_commit": self._on_commit}
        )
        with ExitStack() as undo:
            undo.callback(self._close_consumer)
            check_topics(self._consumer, self._settings.topics, self._settings, lambda: self._last_error)
            self._store.open(self._settings.group or "")
            undo.callback(self._store.close)
            if self._settings.topics:
                subscribe(
                    self._consumer,
                    self._settings.topics,
                    on_assign=self._on_assign,
                    on_revoke=self._on_revoke,
                    on_lost=self._on_lost,
                )
            undo.pop_all()
        self._thread.start()

    def _close_consumer(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def fail(self, error: BaseException) -> None:
        """Stop, for this reason; the first one counts."""
        if self.failure is None:
            self.failure = error
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._backlog.stop()

    def join(self, timeout_s: float | None = None) -> None:
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def call(self, command: Callable[[], _Answer]) -> _Answer:
        """Have the polling thread do something between two polls."""
        if threading.current_thread() is self._thread:
            return command()
        answer: Future[_Answer] = Future()

        def obey() -> None:
            try:
                answer.set_result(command())
            except Exception as error:  # noqa: BLE001 - raised for whoever asked
                answer.set_exception(error)

        self._commands.put(obey)
        deadline = time.monotonic() + _COMMAND_TIMEOUT_S
        while not answer.done():
            if self.ended.is_set() or not self._thread.is_alive():
                raise self.failure or UsageError("the consumer is closed")
            if time.monotonic() > deadline:
                raise GaplessError(
                    f"the consumer did not come to it within {_COMMAND_TIMEOUT_S:g} s, and may do so later:"
                    " it waits for the cluster, or for a handler whose partition it hands over"
                )
            try:
                return answer.result(0.05)
            except TimeoutError:
                if answer.done():
                    break
        return answer.result()

    def commit_first(self, holding: Holding, offset: int) -> bool:
        """Commit and wait for it, from any thread; False if the partition is not ours any more."""
        answer: Future[bool] = Future()
        self._first_commits.put((holding, offset, answer))
        while True:
            try:
                return answer.result(_POLL_S)
            except TimeoutError:
                if self.ended.is_set() and not answer.done():
                    return False

    def taken(self, holding: Holding) -> None:
        """Another consumer has gone on with it: begin anew from what the store then says, if it is ours."""

        def begin_anew() -> None:
            if self._backlog.get(holding.partition) is holding:  # else it has begun anew for another reason
                self._begin_anew(holding.partition, None, _RETAKE_AFTER_S)

        self._commands.put(begin_anew)

    # The thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._turn()
        except KafkaException as error:
            self.fail(translate(error, self._settings))
        except BaseException as error:  # noqa: BLE001 - raised for the user, by `run` or `close`
            self.fail(error)
        finally:
            self._backlog.stop()
            try:
                self._leave()
            except BaseException as error:  # noqa: BLE001 - as above
                self.fail(error)
            self.ended.set()

    def _turn(self) -> None:
        consumer, backlog = self.consumer, self._backlog
        while not self._commands.empty():
            self._commands.get()()
        self._bury()
        self._go_on()
        full = self._wait_for_room()
        if full:
            self._pause(full)
        roomy = backlog.half_empty()
        if roomy:
            self._resume(roomy)
        fetch = min(backlog.room(), _FETCH_RECORDS)
        self._sort(consumer.consume(fetch, 0) or self._wait_for_one(consumer))
        now = time.monotonic()
        if now >= self._next_commit:
            self._next_commit = now + self._settings.commit_every_ms / 1000
            self._commit_done()

    def _wait_for_one(self, consumer: Consumer) -> list[Message]:
        if self._settings.commit_first and self._backlog.has_any():
            self._serve_first_commits(_HANDLING_S)
            return []
        message = consumer.poll(_POLL_S)
        return [] if message is None else [message]

    def _sort(self, messages: Sequence[Message]) -> None:
        found: dict[tuple[str, int], list[Message]] = {}
        errors = [error for error in map(Message.error, messages) if error is not None]
        if errors:
            messages = [message for message in messages if message.error() is None]
            for error in errors:
                self._judge(error)
        places = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        for place, run in groupby(zip(places, messages, strict=True), itemgetter(0)):
            found.setdefault(place, []).extend(map(itemgetter(1), run))
        for place, fetched in found.items():
            holding = self._backlog.get(place)
            if holding is not None and not holding.waiting:
                self._backlog.put(holding, fetched)

    def _judge(self, error: KafkaError) -> None:
        self._last_error = error
        if is_hopeless(error):
            raise translate(KafkaException(error), self._settings)
        _log.info("librdkafka: %s", error)

    def _on_error(self, error: KafkaError) -> None:
        """Called by librdkafka while it polls."""
        self._last_error = error
        if is_hopeless(error):
            self.fail(translate(KafkaException(error), self._settings))

    # Room

    def _wait_for_room(self) -> list[Holding]:
        if not self._settings.commit_first:
            return self._backlog.wait_for_room(_FULL_FOR_S)
        deadline = time.monotonic() + _FULL_FOR_S
        while (full := self._backlog.wait_for_room(0)) and time.monotonic() < deadline:
            self._serve_first_commits(_HANDLING_S)
        return full

    def _pause(self, holdings: Sequence[Holding]) -> None:
        self.consumer.pause([_library(holding.partition, 0) for holding in holdings])
        for holding in holdings:
            holding.paused = True

    def _resume(self, holdings: Sequence[Holding]) -> None:
        self.consumer.resume([_library(holding.partition, 0) for holding in holdings])
        for holding in holdings:
            holding.paused = False

    # Commits

    @property
    def _commits(self) -> bool:
        return self._settings.group is not None and not self._settings.commit_first

    def _commit_done(self) -> None:
        """Without waiting: what fails is committed with the next."""
        if not self._commits:
            return
        news = self._backlog.positions(self._backlog.holdings())
        if news:
            self.consumer.commit(
                offsets=[_library(holding.partition, position) for holding, position in news],
                asynchronous=True,
            )
            for holding, position in news:
                holding.committed = position

    def _on_commit(self, error: KafkaError | None, partitions: list[LibraryPartition]) -> None:
        for each in partitions:
            if error is not None or each.error is not None:
                holding = self._backlog.get((each.topic, each.partition))
                if holding is not None:
                    holding.committed = None

    def _commit_now(self, offsets: Sequence[tuple[Holding, int]]) -> None:
        """And wait for it; raises KafkaException."""
        if not offsets:
            return
        answers = self.consumer.commit(
            offsets=[_library(holding.partition, offset) for holding, offset in offsets], asynchronous=False
        )
        for answer in answers or ():
            if answer.error is not None:
                raise KafkaException(answer.error)
        for holding, offset in offsets:
            holding.committed = offset

    def _serve_first_commits(self, timeout_s: float) -> None:
        """Those that are wanted, in one; waits for the first at most as long as told."""
        wanted: list[_FirstCommit] = []
        try:
            wanted.append(self._first_commits.get(timeout=timeout_s))
            while True:
                wanted.append(self._first_commits.get_nowait())
        except queue.Empty:
            pass
        ours = [(holding, offset) for holding, offset, _answer in wanted if not holding.gone]
        try:
            self._commit_now(ours)
        except KafkaException as error:
            for _holding, _offset, answer in wanted:
                if is_of_rebalance(error.args[0]):
                    answer.set_result(False)
                else:
                    answer.set_exception(translate(error, self._settings))
            return
        for holding, _offset, answer in wanted:
            answer.set_result(not holding.gone)

    def commit_done_now(self) -> None:
        """All that is done; to be called by `call`."""
        self._commit_now(self._backlog.positions(self._backlog.holdings()))

    # Rebalances: called by librdkafka while it polls, in this thread

    def _on_assign(self, _consumer: Consumer, partitions: list[LibraryPartition]) -> None:
        self.hold(partitions, incremental=self._settings.incremental)

    def hold(self, partitions: list[LibraryPartition], *, incremental: bool) -> None:
        """Begin with these partitions, where the store (else their offset, else the group) says."""
        waiting, away, start = list[LibraryPartition](), False, None
        for each in partitions:
            partition, told = _ours(each), each.offset if each.offset >= 0 else None
            try:
                # A store that is away is not asked for every partition: each question may take its time.
                if not (wait := away or self._backlog.is_leaving(partition)):
                    start = self._begin(partition)
            except StoreUnavailable:
                wait = away = True
            if wait:
                holding = self._backlog.add(partition, None)
                holding.waiting = holding.paused = True
                holding.target = told
                waiting.append(each)
            else:
                if told is None and start is not None:
                    each.offset = told = start
                self._backlog.add(partition, told).moved = start is not None
        if incremental:
            self.consumer.incremental_assign(partitions)
        else:
            self.consumer.assign(partitions)
        if waiting:
            self.consumer.pause(waiting)

    def _begin(self, partition: TopicPartition) -> int | None:
        start = self._store.take(partition)
        if start is not None:
            check_offset(self.consumer, partition, start)
        return start

    def _on_revoke(self, _consumer: Consumer, partitions: list[LibraryPartition]) -> None:
        self._hand_over([_ours(each) for each in partitions], self._patience_s)

    def _on_lost(self, _consumer: Consumer, partitions: list[LibraryPartition]) -> None:
        _log.warning(
            "the group went on without this consumer: %s", ", ".join(str(_ours(p)) for p in partitions)
        )
        self._release(self._backlog.drop([_ours(each) for each in partitions]))

    def _hand_over(self, partitions: Sequence[TopicPartition], patience_s: float) -> None:
        holdings = self._backlog.drop(partitions)
        if not self._wait_until_idle(holdings, patience_s):
            _log.warning("a handler is still at work after %.1f s: its record may come again", patience_s)
        if self._commits:
            try:
                self._commit_now(self._backlog.positions(holdings))
            except KafkaException as error:
                _log.warning("what was done last could not be committed, and may come again: %s", error)
        self._release(holdings)

    def _wait_until_idle(self, holdings: Sequence[Holding], patience_s: float) -> bool:
        if not self._settings.commit_first:
            return self._backlog.wait_until_idle(holdings, patience_s)
        deadline = time.monotonic() + patience_s
        while not self._backlog.wait_until_idle(holdings, 0):
            if time.monotonic() > deadline:
                return False
            # Workers that wait for their commit must learn that it is too late for it.
            self._serve_first_commits(_HANDLING_S)
        return True

    def _release(self, holdings: Sequence[Holding]) -> None:
        """Those on which a handler works are released when it ends."""
        for holding in holdings:
            if not holding.busy and not holding.waiting:
                self._store.release(holding.partition)

    def _bury(self) -> None:
        for holding in self._backlog.left():
            self._store.release(holding.partition)

    # Beginning anew: after a seek, or when another consumer was faster

    def _begin_anew(self, partition: TopicPartition, target: int | None, after_s: float = 0.0) -> None:
        """Forget what waits of a partition, and go on from elsewhere as soon as nobody works on it."""
        dropped = self._backlog.drop([partition])
        if not dropped:
            return
        self._release(dropped)
        holding = self._backlog.add(partition, None)
        holding.has_position = dropped[0].has_position
        self._pause([holding])
        holding.waiting = True
        holding.target = target
        holding.resume_at = time.monotonic() + after_s
        self._go_on()

    def _go_on(self) -> None:
        for holding in self._backlog.holdings():
            if (
                holding.waiting
                and time.monotonic() >= holding.resume_at
                and not self._backlog.is_leaving(holding.partition)
            ):
                self._bury()
                try:
                    start = self._begin(holding.partition)
                except StoreUnavailable as error:
                    holding.outage.refused(error, self._settings.store_timeout_s)
                    holding.resume_at = time.monotonic() + PAUSE_S
                    return
                holding.outage.over()
                self._resume_at(holding, start if holding.target is None else holding.target)

    def _resume_at(self, holding: Holding, offset: int | None) -> None:
        if offset is None:
            offset = self._committed_or_reset(holding.partition)
        try:
            if offset >= 0 and holding.has_position:
                self.consumer.seek(_library(holding.partition, offset))
            else:
                self._seek_after_lookup(holding.partition, offset)
                holding.has_position = True
        except KafkaException as error:
            # Just assigned: librdkafka may not have begun with it.
            _log.debug("%s cannot be sought yet: %s", holding.partition, error)
            holding.resume_at = time.monotonic() + _POLL_S
            return
        holding.waiting = False
        self._resume([holding])

    def _seek_after_lookup(self, partition: TopicPartition, offset: int) -> None:
        """Seek a paused partition whose first offset librdkafka may still be looking up.

        A seek does not cancel a lookup that has been sent. When its response arrives, librdkafka finds it
        outdated, repeats the lookup 0.5 s later, and then moves the partition from where it was sought to
        what auto.offset.reset says: records come twice, or with "latest" are never delivered.

        Each seek cancels the lookup that waits to be repeated. So seek until the leader has answered a
        request that was sent later, on the same connection: then it has answered the lookup too. Its answer
        also replaces OFFSET_BEGINNING and OFFSET_END, for which a seek would start another lookup.
        """
        consumer = self.consumer
        watermarks: Future[tuple[int, int]] = Future()

        def ask() -> None:
            try:
                watermarks.set_result(
                    consumer.get_watermark_offsets(_library(partition, 0), timeout=_WATERMARKS_TIMEOUT_S)
                )
            except BaseException as error:  # noqa: BLE001 - raised in the polling thread
                watermarks.set_exception(error)

        consumer.seek(_library(partition, max(offset, 0)))
        thread = threading.Thread(target=ask, name="gapless-watermarks", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(_SEEK_EVERY_S)
                consumer.seek(_library(partition, max(offset, 0)))
        finally:
            thread.join()  # the consumer must not be closed while a thread uses it
        low, high = watermarks.result()
        if offset < 0:
            offset = high if offset == OFFSET_END else low
        consumer.seek(_library(partition, offset))

    def _committed_or_reset(self, partition: TopicPartition) -> int:
        found = self.consumer.committed([_library(partition, 0)], self._settings.connect_timeout_s)[0]
        if found.offset >= 0:
            return int(found.offset)
        return OFFSET_END if self._settings.from_latest else OFFSET_BEGINNING

    # Commands of the user; to be called by `call`

    def assign(self, starts: Mapping[TopicPartition, int | None]) -> None:
        """Hold exactly these partitions, outside of the group's sharing."""
        check_partitions(self.consumer, starts, self._settings, lambda: self._last_error)
        self._hand_over([holding.partition for holding in self._backlog.holdings()], self._patience_s)
        self.hold(
            [
                LibraryPartition(each.topic, each.partition) if start is None else _library(each, start)
                for each, start in starts.items()
            ],
            incremental=False,
        )

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """What the user says; it must not be overruled by what is processed."""
        told = [_library(partition, offset) for partition, offset in offsets.items()]
        self.consumer.commit(offsets=told, asynchronous=False)
        for partition in offsets:
            holding = self._backlog.get(partition)
            if holding is not None:
                holding.commits_itself = False

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if self._backlog.get(partition) is None:
            raise UsageError(f"{partition} is not assigned to this consumer")
        self._begin_anew(partition, offset)

    def _leave(self) -> None:
        """Finish what is being handled, commit, leave the group."""
        try:
            self._hand_over(
                [holding.partition for holding in self._backlog.holdings()], self._settings.close_timeout_s
            )
        finally:
            self._close_consumer()
            self._store.close()
