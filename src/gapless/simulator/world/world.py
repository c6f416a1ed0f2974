"""The world around several nodes: it lets time pass, and carries out what nodes ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from gapless.core.configs import Settings
from gapless.core.contract import (
    BrokerDied,
    Call,
    CatchUp,
    Close,
    DiskFailed,
    Event,
    Flush,
    Flushed,
    InvariantViolated,
    PeerAnswered,
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
from gapless.core.log import LogFailed
from gapless.core.node import Node
from gapless.core.partition import Partition
from gapless.core.records import MetadataRecord
from gapless.simulator.world.agenda import Agenda
from gapless.simulator.world.hosts import NEVER_MS, Host
from gapless.simulator.world.journal import Journal
from gapless.simulator.world.network import Network
from gapless.storage.memory import MemoryLogStore
from gapless.wire.apis import ApiKey
from gapless.wire.request import RequestHeader

START_MS = 1_000_000
DEATH_IS_KNOWN_MS = 2
HELD_FLUSH_AGAIN_MS = 5
MOST_AT_ONCE = 100_000
"""More that happens within one millisecond is taken for something that would never end."""
_FETCH = int(ApiKey.FETCH)


class World:
    """`brokers` hosts numbered from 1. `more` are settings, too: Kafka's names with "_" for "."."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        seed: int = 7,
        now_ms: int = START_MS,
        started: bool = True,
        settings: Mapping[str, str] | None = None,
        **more: str,
    ) -> None:
        given = {name.replace("_", "."): value for name, value in more.items()}
        self.settings = Settings({**(settings or {}), **given})
        self.random = Random(seed)
        self.agenda = Agenda(now_ms)
        self.after = self.agenda.after
        self.journal = Journal(self)
        self.network = Network(self)
        self.flush_latency_ms: Callable[[int], int] = lambda node_id: 0
        self.hold_flushes: dict[int, bool] = {}
        self.on_step: Callable[[int], None] = lambda node_id: None
        """Called after each step of a node, with its number."""
        self.on_told: Callable[[int, str], None] = lambda node_id, text: None
        """Called with each line that a node has for its operator."""
        self.on_event: Callable[[int, Event | Effects], None] | None = None
        """Called with all that happens to nodes and all that they ask for, if anybody wants to know."""
        self.steps = 0
        self._at_once = 0
        self.hosts = {node_id: Host(node_id) for node_id in range(1, brokers + 1)}
        if started:
            for node_id in self.hosts:
                self.start(node_id)
            self.run(50)

    @property
    def now_ms(self) -> int:
        return self.agenda.now_ms

    # --------------------------------------------------------------------------------- lives of brokers

    def add_host(self, node_id: int) -> None:
        """A further broker, not started."""
        self.hosts[node_id] = Host(node_id)

    def start(self, node_id: int, *, keeps_all: bool = True) -> None:
        """Begin a new life of a broker: it reads the journal and starts."""
        host = self.hosts[node_id]
        host.life += 1
        host.alive, host.paused, host.stopped = True, False, False
        host.keeps_all = host.keeps_all and keeps_all
        host.held.clear()
        host.proposing = host.answer = None
        randomness = Random(self.random.getrandbits(32))
        host.node = Node(node_id, "simulated", self.settings, host.store, randomness)
        self.step(node_id, self.journal.news(host))
        self.step(node_id, Started(f"host-{node_id}", 9000 + node_id, host.keeps_all, host.keeps_flushed))

    def crash(self, node_id: int, *, noticed: bool = True) -> None:
        """SIGKILL: what was written stays in the page cache. `noticed`: the others learn it as BrokerDied."""
        host = self.hosts[node_id]
        registered = host.node.image.brokers.get(node_id)
        host.alive = host.paused = False
        host.held.clear()
        host.due_ms = NEVER_MS
        host.store.close()
        self.network.ended(node_id)
        if noticed and registered is not None:
            died = BrokerDied(node_id, registered.epoch)
            for other in self.hosts.values():
                if other.alive:
                    self.after(
                        DEATH_IS_KNOWN_MS,
                        lambda other=other, life=other.life: self.deliver(other, life, died),  # type: ignore[misc]
                    )

    def power_cut(
        self, node_id: int, *, noticed: bool = True, kept: dict[tuple[str, int], int] | None = None
    ) -> None:
        """The machine ends: what was never flushed is gone, but for what `kept` names.

        The next life knows that it may lack something.
        """
        host = self.hosts[node_id]
        host.store.power_cut(kept)
        host.keeps_all = False
        self.crash(node_id, noticed=noticed)

    def lose_disk(self, node_id: int, *, noticed: bool = True) -> None:
        """The machine ends with its disk: the next life begins with an empty one, and knows it."""
        host = self.hosts[node_id]
        self.crash(node_id, noticed=noticed)
        host.store = MemoryLogStore()
        host.keeps_all = host.keeps_flushed = False

    def restart(self, node_id: int) -> None:
        """SIGKILL and a new process."""
        if self.hosts[node_id].alive:
            self.crash(node_id)
            self.run(10)
        self.start(node_id)

    def pause(self, node_id: int) -> None:
        """SIGSTOP: nothing happens there until `resume`."""
        self.hosts[node_id].paused = True

    def resume(self, node_id: int) -> None:
        """SIGCONT: all that has happened meanwhile happens now."""
        host = self.hosts[node_id]
        host.paused = False
        held, host.held = host.held, []
        self.step(node_id, Tick())
        for event in held:
            self.step(node_id, event)
        self.journal.tell(host, host.life)

    def ask_to_stop(self, node_id: int) -> None:
        """SIGTERM; `hosts[node_id].stopped` tells when it is ready to end."""
        self.step(node_id, StopAsked())

    def node(self, node_id: int) -> Node:
        """A broker's rules, as of its present life."""
        return self.hosts[node_id].node

    def partition(self, node_id: int, topic: str = "t", index: int = 0) -> Partition:
        """A replica."""
        return self.hosts[node_id].node.partitions[TopicPartition(topic, index)]

    # -------------------------------------------------------------------------------------- the network

    def cut(self, a: int, b: int) -> None:
        """Nothing comes through between two from now on."""
        self.network.block(a, b)
        self.network.block(b, a)

    def isolate(self, node_id: int) -> None:
        """Cut a broker off from all others (not from the journal, nor from clients)."""
        for other in self.hosts:
            if other != node_id:
                self.cut(node_id, other)

    def heal(self) -> None:
        """All ways are open again."""
        self.network.heal()

    # ------------------------------------------------------------------------------------------- time

    def run(self, ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + ms
        while self.advance(end_ms):
            pass
        self.agenda.now_ms = end_ms

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 30_000) -> None:
        """Let time pass until something holds; fails if it does not in time."""
        end_ms = self.now_ms + limit_ms
        while not condition():
            if not self.advance(end_ms):
                raise AssertionError(f"it did not come true within {limit_ms} ms")

    def advance(self, end_ms: int) -> bool:
        """Let the next thing happen, if it is due by `end_ms`."""
        agenda = self.agenda
        due_ms = agenda.next_due(end_ms)
        ticking = None
        for host in self.hosts.values():
            if host.due_ms < due_ms and not host.paused:
                due_ms, ticking = host.due_ms, host
        if due_ms > end_ms:
            return False
        if due_ms > agenda.now_ms:
            agenda.now_ms, self._at_once = due_ms, 0
        self._at_once += 1
        if self._at_once > MOST_AT_ONCE:
            raise InvariantViolated(f"time stands still: {MOST_AT_ONCE} things at once, and no end")
        if ticking is None:
            agenda.take_next()()
        else:
            self.step(ticking.node_id, Tick())
        return True

    # -------------------------------------------------------------------------------------- the shell

    def step(self, node_id: int, event: Event) -> None:
        """Let one thing happen to a node and carry out what follows."""
        host = self.hosts[node_id]
        if host.paused:
            host.held.append(event)
            return
        self.steps += 1
        node, ahead_ms = host.node, host.clock_ahead_ms
        effects = node.step(self.agenda.now_ms + ahead_ms, event)
        if node.serving:
            host.keeps_all = host.keeps_flushed = True
        on_event = self.on_event
        if on_event is not None:
            on_event(node_id, event)
            for effect in effects:
                on_event(node_id, effect)
        for effect in effects:
            self._carry_out(host, effect)
        if host.node is node and host.alive:
            deadline_ms = node.next_deadline()
            host.due_ms = NEVER_MS if deadline_ms is None else deadline_ms - ahead_ms
        self.on_step(node_id)

    def _carry_out(self, host: Host, effect: Effects) -> None:
        match effect:
            case Reply():
                self.replied(effect.request, effect.message)
            case Call():
                self._call(host, effect)
            case Flush():
                self._flush(host, effect.partition)
            case Propose():
                self.journal.propose(host, effect)
            case CatchUp():
                self.journal.catch_up(host, host.life)
            case Tell():
                host.told.append(effect.text)
                self.on_told(host.node_id, effect.text)
            case Stop():
                host.stopped = True
            case Close(connection, _):
                channel = self.network.channel(connection)
                if channel is not None:
                    self.after(0, lambda: self.network.hang_up(channel))

    def replied(self, request: Request, message: Any) -> None:
        """A node has answered."""
        self.network.reply(request, message)

    def deliver(self, host: Host, life: int, event: Event) -> None:
        """Let something happen to a node, if that life of it goes on."""
        if host.alive and host.life == life:
            self.step(host.node_id, event)

    def _call(self, host: Host, call: Call) -> None:
        header = RequestHeader(call.api_key, call.api_version, 0, f"gapless-broker-{host.node_id}")
        self.network.ask(
            (host.node_id, call.node_id),
            call.api_key == _FETCH,
            header,
            call.body,
            call.timeout_ms,
            partial(self._answered, host, host.life, call),
        )

    def _answered(self, host: Host, life: int, call: Call, message: Any) -> None:
        if host.alive and host.life == life:
            self.step(host.node_id, PeerAnswered(call, message))

    # ------------------------------------------------------------------------------------------ disks

    def _flush(self, host: Host, partition: TopicPartition) -> None:
        life = host.life
        log = host.store.logs.get(partition)
        if log is None:
            return
        try:
            job = log.prepare_flush()
        except LogFailed as error:
            failed = DiskFailed(partition, str(error))
            self.after(0, lambda: self.deliver(host, life, failed))
            return

        def finish() -> None:
            if not host.alive or host.life != life or host.store.logs.get(partition) is not log:
                return
            if self.hold_flushes.get(host.node_id):
                self.after(HELD_FLUSH_AGAIN_MS, finish)
                return
            if job is not None:
                log.flushed(job)
            self.step(host.node_id, Flushed(partition, log.flushed_offset if job is None else job.offset))

        self.after(self.flush_latency_ms(host.node_id), finish)

    # ----------------------------------------------------------------------------------- the journal

    def append(self, *records: MetadataRecord) -> None:
        """Somebody's records enter the journal."""
        self.journal.append(list(records))


Effects = Reply | Flush | Propose | Close | Call | CatchUp | Tell | Stop
