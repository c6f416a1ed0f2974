"""A producer of librdkafka, the thread that serves its reports, and the thread that users' callbacks run on.

librdkafka tells what became of records when somebody polls. A thread of ours does. While some other thread
sends much, that one polls in passing (`help`) and ours stays away: two threads that take turns for every
report cost more than the reports. Only one polls at a time, so reports are handled one by one.

Callbacks of users always run on our thread, so they never come in the middle of a `send` that holds a lock of
the user's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from gapless.client.logs import librdkafka_logger
from gapless.client.producing.asking import count_partitions
from gapless.client.producing.receipts import Receipt, waits_for_itself
from gapless.errors import GaplessError, Unreachable, UsageError

_POLL_S = 0.05
_STAY_AWAY_S = 0.01
_LOOK_S = 0.01
_PURGE_S = 10.0
_QUIET_S = 0.1
_LOOK_AT_S = 1.0

_logger = logging.getLogger("gapless.client")

Chore = Callable[[], None]
ProducedHeaders = list[tuple[str, str | bytes | None]]
"""As librdkafka takes them."""


class _Ended:
    """In the place of a producer that has ended."""

    def __len__(self) -> int:
        return 0

    def poll(self, _timeout_s: float) -> int:
        return 0

    def flush(self, _timeout_s: float) -> int:
        return 0

    def purge(self, **_what: bool) -> None: ...

    def produce(self, *_record: object, **_more: object) -> None:
        raise UsageError("the producer is closed")

    def list_topics(self, *_topic: object, **_timeout: object) -> None:
        raise UsageError("the producer is closed")


class Poller:
    """Thread-safe. `chore` is run on its thread many times a second and must not raise."""

    def __init__(self, properties: Mapping[str, Any], name: str, chore: Chore) -> None:
        self._properties = dict(properties)
        self._users_error_cb = self._properties.get("error_cb")
        self._properties["error_cb"] = self._noticed
        self._properties.setdefault("logger", librdkafka_logger)
        self._chore = chore
        self._callbacks: deque[Receipt] = deque()
        self.settled = self._callbacks.append
        """Queues the callback of a settled receipt that has one."""
        self.callback_errors = 0
        self.problem: str | None = None
        """What librdkafka last complained about."""
        self.fatal = False
        """Whether the producer can do nothing any more: `renew` it."""
        self.producer = self._new()
        self.polling = threading.Lock()
        """Held by whoever polls, for a moment: while it is held, no report is handled elsewhere.

        Users' threads take it by `with` only: else an interrupt (Ctrl-C) could leave it shut.
        """
        self._busy = False
        self._stopping = False
        self._awake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gapless-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Run the callbacks that are left, and end the thread and the producer; not to be called on it."""
        self._stopping = True
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._run_callbacks()
        self._end_producer()

    def _end_producer(self) -> None:
        """Let go of it, and its threads end with it. Its callback holds us, so else a collector had to come.

        Not `Producer.close`, which waits for whoever asks it for a topic at the moment.
        """
        self.purge(in_flight=True)
        with self.polling:
            self.producer = cast("Producer", _Ended())

    def run_late_callbacks(self) -> None:
        """Of what was settled after the thread's end."""
        if self._stopping and not self._thread.is_alive():
            self._run_callbacks()

    def refuse_in_callback(self, what: str) -> None:
        if threading.current_thread() is self._thread:
            raise waits_for_itself(what)

    # ------------------------------------------------------------------------------------- polling

    def help(self) -> None:
        """Serve reports that are there already; called by threads that send, in passing."""
        self._busy = True
        if not self.polling.locked():
            with self.polling:
                self.producer.poll(0)

    def serve(self, timeout_s: float) -> None:
        """Serve reports, waiting for the first; or let somebody else do so for a moment."""
        if self.polling.locked():
            time.sleep(min(timeout_s, _LOOK_S))
            return
        with self.polling:
            self.producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Let everything go out at once, and serve reports for so long, or until there are none to come."""
        with self.polling:
            self.producer.flush(timeout_s)

    def purge(self, in_flight: bool) -> None:
        """Give up what is not on its way, or everything; reports say so of each record, and are served."""
        self.producer.purge(in_queue=True, in_flight=in_flight)
        with self.polling:
            # Reports come a moment later, from threads of librdkafka. Where records may stay that are on
            # their way, the end is when no more come.
            now_s = time.monotonic()
            give_up_at_s, quiet_at_s = now_s + _PURGE_S, now_s + _QUIET_S
            while (left := len(self.producer)) and now_s < (give_up_at_s if in_flight else quiet_at_s):
                self.producer.poll(_LOOK_S)
                now_s = time.monotonic()
                if len(self.producer) != left:
                    quiet_at_s = now_s + _QUIET_S
            if in_flight and left:
                _logger.error("librdkafka does not tell what became of %d records that were given up", left)

    def renew(self) -> None:
        """A new producer in place of one that failed for good; each of its records is reported as failed."""
        self.purge(in_flight=True)
        with self.polling:
            self.producer = self._new()
            self.fatal = False

    @property
    def unreported(self) -> int:
        """Records whose fate is open."""
        return len(self.producer)

    def count_partitions(self, topic: str, timeout_s: float) -> int:
        """Ask the cluster."""
        try:
            return count_partitions(self.producer, self._properties["bootstrap.servers"], topic, timeout_s)
        except Unreachable as away:
            self.serve(_POLL_S)  # it may be about to tell why
            if self.problem is None:
                raise
            raise Unreachable(f"{away} ({self.problem})") from away

    def look_at(self, topic: str) -> None:
        """Let librdkafka see at once how a topic is now; by itself it looks every five minutes."""
        with contextlib.suppress(KafkaException):
            self.producer.list_topics(topic, timeout=_LOOK_AT_S)

    # ------------------------------------------------------------------------------------ its thread

    def _run(self) -> None:
        while not self._stopping:
            self._run_callbacks()
            self._chore()
            if self._busy or self.polling.locked():  # to wait for its lock would hold up callbacks and chores
                self._busy = False
                self._awake.wait(_STAY_AWAY_S)
            elif not self._callbacks:
                self._poll()

    def _poll(self) -> None:
        """Or not, while another thread keeps at it: callbacks and chores must not wait for that."""
        if self.polling.acquire(timeout=_POLL_S):
            try:
                self.producer.poll(_POLL_S)
            finally:
                self.polling.release()

    def _run_callbacks(self) -> None:
        callbacks, next_one = self._callbacks, self._callbacks.popleft
        while callbacks:
            try:
                receipt = next_one()
            except IndexError:  # another thread took it
                return
            try:
                error = None if receipt._outcome is True else receipt.error
                receipt.on_delivery(error, receipt)  # type: ignore[misc]  # or it were not here
            except (Exception, SystemExit):  # exit() ends only the thread that it is called on: ours
                self.callback_errors += 1
                if self.callback_errors == 1:
                    _logger.exception("on_delivery raised for %r; further ones are only counted", receipt)

    def _new(self) -> Producer:
        try:
            return Producer(self._properties)
        except KafkaException as error:
            raise UsageError(f"librdkafka refuses the settings: {error.args[0].str()}") from error
        except (TypeError, ValueError) as error:
            raise UsageError(f"librdkafka refuses the settings: {error}") from error

    def _noticed(self, error: KafkaError) -> None:
        if self.problem is None or error.code() != KafkaError._ALL_BROKERS_DOWN:  # which says less
            self.problem = error.str()
        if error.fatal() or error.code() == KafkaError._FATAL:
            self.fatal = True
        if self._users_error_cb is not None:
            self._users_error_cb(error)


def fail(receipt: Receipt, error: GaplessError, poller: Poller) -> None:
    """Settle a receipt with an error, and see to its callback."""
    receipt.settle(error)
    if receipt.on_delivery is not None:
        poller.settled(receipt)
