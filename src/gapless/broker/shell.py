"""The shell around the rules: turns the world into events and carries out effects, in their order.

Everything here runs on the event loop's thread; only fsyncs and the journal's reads and writes happen on
worker threads, and come back as events.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from gapless.broker.clock import Clock
from gapless.broker.connection import Connection
from gapless.broker.coordination.port import Coordination
from gapless.broker.deaths import DeathWatch
from gapless.broker.flusher import Flusher
from gapless.broker.journal import Journal
from gapless.broker.metrics import Metrics
from gapless.broker.peers import Peers
from gapless.core.contract import (
    Call,
    CatchUp,
    Close,
    ConnectionClosed,
    Effect,
    Event,
    Flush,
    InvariantViolated,
    PeerLost,
    Propose,
    Reply,
    Request,
    Started,
    Stop,
    StopAsked,
    Tell,
    Tick,
    TopicPartition,
)
from gapless.core.image import Image
from gapless.core.log import LogFailed
from gapless.core.node import Node
from gapless.storage.file_log import FileLog
from gapless.storage.file_store import CheckpointJob, FileLogStore, Kept
from gapless.storage.trash import DeletionJob

log = logging.getLogger("gapless.broker")

HOUSEKEEPING_S = 1.0
CHECKPOINT_EVERY_S = 5.0
REFUSAL_LINES_PER_S = 10
HAND_OVER_TIMEOUT_S = 10.0
"""The rules give up before that; this is for the case that they cannot."""


class Shell:
    """One broker process's insides."""

    def __init__(
        self, node: Node, store: FileLogStore, coordination: Coordination, open_files_limit: int = 2**31
    ) -> None:
        self.node = node
        self.store = store
        self.coordination = coordination
        self.clock = Clock()
        self.metrics = Metrics()
        self.connections: dict[int, Connection] = {}
        self.max_request_bytes: int = node.settings.get("socket.request.max.bytes")
        self.max_connections: int = min(node.settings.get("max.connections"), open_files_limit // 2)
        self.serving = asyncio.Event()
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._idle_s = node.settings.get("connections.max.idle.ms") / 1000
        self._held_budget: int = node.settings.get("queued.max.request.bytes")
        self._held: dict[int, int] = {}
        self._held_total = 0
        self.flusher = Flusher(self._loop, self._find_log, self.step)
        self.journal = Journal(self._loop, coordination, self._image, self.step, self.fail)
        self.deaths = DeathWatch(self._loop, coordination, node.node_id, self._image, self.step)
        self.peers = Peers(self._loop, node.node_id, self._image, self.step, self._suspect)
        self._handed_over = asyncio.Event()
        self._chores_thread = ThreadPoolExecutor(1, thread_name_prefix="chores")
        self._chore: asyncio.Future[None] | None = None
        self._events: deque[Event] = deque()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._housekeeping: asyncio.TimerHandle | None = None
        self._last_checkpoint = monotonic()
        self._next_connection = 0
        self._refusal_window = (0, 0)
        self._last_housekeeping = monotonic()
        self._slept = False
        self._untold_refusals = 0
        self._problems_told: set[tuple[str, int, str]] = set()

    # --------------------------------------------------------------------------------------- the rules

    def step(self, event: Event) -> None:
        """Let the rules see an event. One that arises while effects are carried out waits its turn."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                self._let_happen(self._events.popleft())
        finally:
            self._stepping = False
        self._arm_timer()

    def _let_happen(self, event: Event) -> None:
        try:
            effects = self.node.step(self.clock.now_ms(), event)
        except Exception as error:
            if not isinstance(event, Request) or isinstance(error, InvariantViolated):
                # A broken rule must stop the broker, not leave it half alive; what it acknowledged is safe.
                self.fail(error)
                if isinstance(error, LogFailed) and not self.node.serving:
                    return  # no bug, but a disk that does not let us begin: `start` tells
                raise
            self.request_failed(event, error)
            return
        for effect in effects:
            self._carry_out(effect)
        if self.node.serving and not self.serving.is_set():
            self.serving.set()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Reply():
                connection = self.connections.get(effect.request.connection)
                if connection is not None:
                    connection.answer(effect.request, effect.message)
            case Flush(partition, offset):
                self.flusher.flush(partition, offset)
            case Call():
                self.peers.call(effect)
            case Propose():
                self.journal.propose(effect)
            case Close(number, reason):
                if number in self.connections:
                    self.connections[number].close(reason)
            case CatchUp():
                self.journal.catch_up()
            case Tell(text, is_problem):
                log.log(logging.WARNING if is_problem else logging.INFO, "%s", text)
            case Stop():
                self._handed_over.set()

    def request_failed(self, request: Request, error: Exception) -> None:
        """A request that cannot be coped with costs its sender the connection, and nobody else anything."""
        log.error("request %s failed", request.header, exc_info=error)
        if request.connection in self.connections:
            self.connections[request.connection].close(f"the request failed: {error!r}")

    def fail(self, error: BaseException) -> None:
        """Remember why the broker has to stop, and let it."""
        if self.failure is None:
            self.failure = error
        self.serving.set()
        self.failed.set()

    def _arm_timer(self) -> None:
        due_ms = self.node.next_deadline()
        if due_ms is None:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return  # it fires early, finds nothing due, and is set anew
            self._timer.cancel()
        self._timer_due_ms = due_ms
        delay_s = max(0.0, (due_ms - self.clock.now_ms()) / 1000)
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.step(Tick())

    def _find_log(self, partition: TopicPartition) -> FileLog | None:
        return self.store.logs.get(partition)

    def _suspect(self, node_id: int) -> None:
        self.step(PeerLost(node_id))
        self.deaths.suspect(node_id)

    def _image(self) -> Image:
        return self.node.image

    # -------------------------------------------------------------------------------------- start and stop

    async def start(self, host: str, port: int, *, kept: Kept, listen: Callable[[], None]) -> None:
        """Read the journal, recover the logs, take up leadership; returns when clients can be served.

        `listen` is called when others may learn of this broker: whoever connects must not be refused.
        """
        self.journal.read_all()
        self.deaths.look_at_all()  # before registering: what the dead led or upheld may be led here at once
        self.step(Started(host, port, kept.all, kept.flushed))
        listen()
        self._report_problems()
        self.coordination.watch(self._loop, self._coordination_moved)
        await self.serving.wait()
        if self.failure is not None:
            raise self.failure
        gc.collect()
        gc.freeze()  # what the start has made stays for good: no later collection has to look at it
        self._housekeeping = self._loop.call_later(HOUSEKEEPING_S, self._keep_house)
        self.deaths.look_at_all()

    def _coordination_moved(self) -> None:
        self.journal.moved()
        self.deaths.look_at_all()

    async def hand_over(self) -> None:
        """Let other brokers lead what this one leads, if there are any."""
        if len(self.node.image.live_brokers()) < 2:
            return
        self.step(StopAsked())
        ended = [asyncio.create_task(event.wait()) for event in (self._handed_over, self.failed)]
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED, timeout=HAND_OVER_TIMEOUT_S)
        for task in ended:
            task.cancel()

    async def stop(self) -> None:
        """Cut all clients off, make everything durable, and mark the stop as clean."""
        self.deaths.close()
        self.peers.close()
        for connection in list(self.connections.values()):
            connection.abort()
        try:
            await self._stop_working()
            self.node.save_producers()
            self.store.close_cleanly()
        finally:
            self.journal.close()  # and with it the session: from now on another process may be this broker

    async def _stop_working(self) -> None:
        await self.journal.settle()
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        if self._chore is not None:
            await asyncio.wait((self._chore,))
        await self.flusher.close()
        if self._timer is not None:
            self._timer.cancel()
        self._chores_thread.shutdown(wait=True)

    # --------------------------------------------------------------------------------------- connections

    def new_connection(self) -> Connection:
        """The protocol for a client that just connected."""
        self._next_connection += 1
        return Connection(self, self._next_connection)

    def connected(self, connection: Connection) -> None:
        """Count a connection in, unless there are too many."""
        self.connections[connection.number] = connection
        if len(self.connections) > self.max_connections:
            connection.close(
                f"{self.max_connections} are open already, all that max.connections and ulimit -n allow"
            )

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection and all that waited for it."""
        if self.connections.pop(connection.number, None) is not None:
            self._held_total -= self._held.pop(connection.number, 0)
            self.step(ConnectionClosed(connection.number))

    def note_held(self, connection: Connection) -> None:
        """Keep what unfinished requests hold within the budget: who has made least progress must go."""
        held = connection.held_bytes
        before = self._held.get(connection.number, 0)
        if held == before:
            return
        self._held[connection.number] = held
        self._held_total += held - before
        while self._held_total > self._held_budget:
            holders = (self.connections[number] for number, size in self._held.items() if size)
            slowest = min(holders, key=lambda holder: holder.stalled_since())
            self._held_total -= self._held.pop(slowest.number)
            slowest.close(f"requests still arriving exceed queued.max.request.bytes={self._held_budget}")

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Go on with something after everybody else had a turn."""
        self._loop.call_soon(callback)

    def log_refusal(self, connection: Connection, reason: str) -> None:
        """One line per connection that was cut, but not as many as a hostile client could cause."""
        self.metrics.refused_connections += 1
        second, lines = self._refusal_window
        now = int(monotonic())
        lines = lines + 1 if now == second else 1
        self._refusal_window = (now, lines)
        if lines <= REFUSAL_LINES_PER_S:
            log.warning("closing connection from %s: %s", connection.peer, reason)
        else:
            self._untold_refusals += 1

    # -------------------------------------------------------------------------------------- housekeeping

    def _keep_house(self) -> None:
        self._housekeeping = self._loop.call_later(HOUSEKEEPING_S, self._keep_house)
        now = monotonic()
        self._close_idle_connections(now)
        if self._untold_refusals:
            log.warning("closed %d more connections", self._untold_refusals)
            self._untold_refusals = 0
        self._report_problems()
        for partition in self.node.partitions.values():
            log_file = self._find_log(partition.name)
            if partition.offline is None and log_file is not None and log_file.has_unflushed_closed_segments:
                self.flusher.flush(partition.name, log_file.end_offset)
        self._do_chores(now)

    def _close_idle_connections(self, now: float) -> None:
        """After a pause of this broker's own, clients have until the next round to be heard."""
        slept = now - self._last_housekeeping > 2 * HOUSEKEEPING_S
        self._last_housekeeping = now
        self._slept, slept_before = slept, self._slept
        if slept and not slept_before:
            return
        for connection in list(self.connections.values()):
            if now - connection.stalled_since() > self._idle_s:
                connection.close(f"no progress for {self._idle_s:.0f} s")

    def _do_chores(self, now: float) -> None:
        """Checkpoints and deletions take their time: off the loop, one after the other."""
        if self._chore is not None and not self._chore.done():
            return
        job: CheckpointJob | DeletionJob | None = None
        if now - self._last_checkpoint > CHECKPOINT_EVERY_S:
            self._last_checkpoint = now
            job = self.store.prepare_checkpoints()
        job = job or self.store.prepare_deletions()
        if job is not None:
            self._chore = self._loop.run_in_executor(self._chores_thread, self._run_chore, job)

    @staticmethod
    def _run_chore(job: CheckpointJob | DeletionJob) -> None:
        try:
            job.run()
        except LogFailed as error:
            log.warning("%s", error)  # what it would have saved is done again, or found by the next recovery

    def _report_problems(self) -> None:
        """Say once why a partition cannot be used, or not be written to, or not be read as a whole."""
        problems = {(*name, "offline"): reason for name, reason in self.node.failed_partitions.items()}
        for name, partition in self.node.partitions.items():
            if partition.offline is not None:
                problems[*name, "offline"] = partition.offline
            if partition.damage is not None:
                problems[*name, "damaged"] = partition.damage
        for (topic, index, state), reason in problems.items():
            if (topic, index, state) not in self._problems_told:
                log.error("partition %s-%d is %s: %s", topic, index, state, reason)
        self._problems_told = set(problems)
