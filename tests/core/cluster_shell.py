"""The shell around several nodes in virtual time: their lives, journal, network and disks.

Tests use it through `cluster_harness`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any

from gapless.core.configs import Settings
from gapless.core.contract import (
    BrokerDied,
    Call,
    CatchUp,
    CaughtUp,
    Close,
    Committed,
    ConnectionClosed,
    DiskFailed,
    Event,
    Flush,
    Flushed,
    PeerAnswered,
    Propose,
    Refused,
    Reply,
    Request,
    Started,
    Stop,
    StopAsked,
    Tell,
    Tick,
    TopicPartition,
)
from gapless.core.node import Node
from gapless.core.partition import Partition
from gapless.core.records import MetadataRecord
from gapless.storage.memory import MemoryLogStore
from gapless.wire import fetch, fetch_peer
from gapless.wire.apis import ApiKey
from gapless.wire.request import RequestHeader

FIRST_CLIENT_CONNECTION = 1_000_000


@dataclass(eq=False)
class Answer:
    """What became of a client's request; `message` is its reply once `done`."""

    request: Request
    node_id: int
    done: bool = False
    message: Any = None

    @property
    def partition(self) -> Any:
        """The first partition's result of a produce or fetch response."""
        if not self.done:
            raise AssertionError("the request still waits")
        return self.message.topics[0].partitions[0]


@dataclass(eq=False)
class Pending:
    """A call on its way through a connection."""

    call: Call
    request: Request
    answered: bool = False
    message: Any = None


@dataclass(eq=False)
class Link:
    """One connection from a node to another."""

    number: int
    source: int
    target: int
    pending: list[Pending] = field(default_factory=list)
    closed: bool = False


class Host:
    """One broker's place: its disk outlives its processes."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.store = MemoryLogStore()
        self.alive = False
        self.paused = False
        self.stopped = False
        self.keeps_all = True
        """False from a power cut on until the journal knows of it."""
        self.node: Node
        self.life = 0
        self.told: list[str] = []
        self.held: list[Event] = []
        self.proposing: Propose | None = None


class ClusterShell:
    """`brokers` nodes numbered from 1. Settings are Kafka's names with "_" for "."."""

    def __init__(
        self,
        brokers: int = 3,
        *,
        seed: int = 7,
        now_ms: int = 1_000_000,
        started: bool = True,
        **settings: str,
    ) -> None:
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.random = Random(seed)
        self.now_ms = now_ms
        self.latency_ms: Callable[[], int] = lambda: 1
        self.journal_latency_ms: Callable[[], int] = lambda: 1
        self.flush_latency_ms: Callable[[], int] = lambda: 0
        self.hold_flushes: dict[int, bool] = {}
        self.hold_journal: dict[int, bool] = {}
        """Nodes whose proposals do not reach the journal, nor its news them."""
        self.on_step: Callable[[int], None] = lambda node_id: None
        self.journal: list[list[MetadataRecord]] = []
        self.cuts: dict[tuple[int, int], None] = {}
        self.drop: Callable[[int, int, Any], bool] = lambda source, target, message: False
        """Whether a message (a Call, or the answer to one) from one node to another is lost."""
        self.calls: list[tuple[int, Call]] = []
        self.trace: list[tuple[int, int, str]] = []
        self.tracing = False
        self._links: dict[tuple[int, int, bool], Link] = {}
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._connections = 0
        self._clients = FIRST_CLIENT_CONNECTION
        self._answers: dict[Request, Answer] = {}
        self._pending: dict[Request, tuple[Link, Pending]] = {}
        self.hosts = {node_id: Host(node_id) for node_id in range(1, brokers + 1)}
        if started:
            for node_id in self.hosts:
                self.start(node_id)
            self.run(50)

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
        host.proposing = None
        seed = self.random.getrandbits(32)
        host.node = Node(node_id, "test-cluster", Settings(self.settings), host.store, Random(seed))
        self.step(node_id, self._news(host))
        self.step(node_id, Started(f"host-{node_id}", 9000 + node_id, host.keeps_all))

    def crash(self, node_id: int, *, noticed: bool = True) -> None:
        """SIGKILL: what was written stays in the page cache. `noticed`: the others learn it as BrokerDied."""
        host = self.hosts[node_id]
        registered = host.node.image.brokers.get(node_id)
        host.alive = host.paused = False
        host.held.clear()
        host.store.close()
        for link in list(self._links.values()):
            if node_id in (link.source, link.target):
                self._close(link)
        for answer in list(self._answers.values()):
            if answer.node_id == node_id:
                del self._answers[answer.request]
        if noticed and registered is not None:
            died = BrokerDied(node_id, registered.epoch)
            for other in self.hosts.values():
                if other.alive:
                    self.after(2, lambda other=other: self._deliver(other.node_id, other.life, died))  # type: ignore[misc]

    def power_cut(self, node_id: int, *, noticed: bool = True) -> None:
        """The machine ends: what was never flushed is gone. Start it again with `keeps_all=False`."""
        host = self.hosts[node_id]
        kept = {name: log.flushed_offset for name, log in host.store.logs.items()}
        host.store.power_cut(kept)
        self.crash(node_id, noticed=noticed)

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
        host = self.hosts[node_id]
        host.paused = False
        held, host.held = host.held, []
        self.step(node_id, Tick())
        for event in held:
            self.step(node_id, event)
        self._tell(host, host.life)

    def ask_to_stop(self, node_id: int) -> None:
        """SIGTERM; `hosts[node_id].stopped` tells when it is ready to end."""
        self.step(node_id, StopAsked())

    def node(self, node_id: int) -> Node:
        return self.hosts[node_id].node

    def partition(self, node_id: int, topic: str = "t", index: int = 0) -> Partition:
        return self.hosts[node_id].node.partitions[TopicPartition(topic, index)]

    # -------------------------------------------------------------------------------------- the network

    def cut(self, a: int, b: int) -> None:
        """Nothing comes through between two nodes from now on."""
        self.cuts[a, b] = self.cuts[b, a] = None

    def isolate(self, node_id: int) -> None:
        """Cut a node off from all others (not from the journal)."""
        for other in self.hosts:
            if other != node_id:
                self.cut(node_id, other)

    def heal(self) -> None:
        self.cuts.clear()

    # ------------------------------------------------------------------------------------------- time

    def after(self, ms: int, action: Callable[[], None]) -> None:
        """Do something later."""
        self._order += 1
        heappush(self._queue, (self.now_ms + ms, self._order, action))

    def run(self, ms: int) -> None:
        """Let time pass."""
        end = self.now_ms + ms
        while self._advance(end):
            pass
        self.now_ms = end

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 30_000) -> None:
        """Let time pass until something holds; fails if it does not in time."""
        end = self.now_ms + limit_ms
        while not condition():
            if not self._advance(end):
                raise AssertionError(f"it did not come true within {limit_ms} ms")

    def _advance(self, end_ms: int) -> bool:
        """Let the next thing happen, if it is due by `end_ms`."""
        due_ms = self._queue[0][0] if self._queue else end_ms + 1
        ticking = None
        for host in self.hosts.values():
            if host.alive and not host.paused:
                deadline_ms = host.node.next_deadline()
                if deadline_ms is not None and deadline_ms < due_ms:
                    due_ms, ticking = deadline_ms, host
        if due_ms > end_ms:
            return False
        self.now_ms = max(self.now_ms, due_ms)
        if ticking is not None:
            self.step(ticking.node_id, Tick())
        else:
            heappop(self._queue)[2]()
        return True

    # -------------------------------------------------------------------------------------- the shell

    def step(self, node_id: int, event: Event) -> None:
        """Let one thing happen to a node and carry out what follows."""
        host = self.hosts[node_id]
        if host.paused:
            host.held.append(event)
            return
        effects = host.node.step(self.now_ms, event)
        host.keeps_all = host.keeps_all or host.node.serving
        if self.tracing:
            self.trace.append((self.now_ms, node_id, repr(event)))
            self.trace.extend((self.now_ms, node_id, repr(effect)) for effect in effects)
        for effect in effects:
            match effect:
                case Reply(request, message):
                    self._reply(request, message)
                case Flush():
                    self._flush(host, effect.partition)
                case Propose():
                    host.proposing = effect
                    self.after(self.journal_latency_ms(), self._arrival(host, effect))
                case Call():
                    self._call(host, effect)
                case CatchUp():
                    self._catch_up(host, host.life)
                case Tell():
                    host.told.append(effect.text)
                case Stop():
                    host.stopped = True
                case Close(connection, _):
                    self.after(0, lambda c=connection: self._deliver(node_id, host.life, ConnectionClosed(c)))  # type: ignore[misc]
        self.on_step(node_id)

    def _deliver(self, node_id: int, life: int, event: Event) -> None:
        host = self.hosts[node_id]
        if host.alive and host.life == life:
            self.step(node_id, event)

    # ----------------------------------------------------------------------------------- the journal

    def append(self, *records: MetadataRecord) -> None:
        """Somebody's records enter the journal."""
        self.journal.append(list(records))
        self._spread()

    def _spread(self) -> None:
        for host in self.hosts.values():
            if host.alive:
                self.after(self.journal_latency_ms(), lambda h=host, life=host.life: self._tell(h, life))  # type: ignore[misc]

    def _tell(self, host: Host, life: int) -> None:
        if not host.alive or host.life != life or host.paused or self.hold_journal.get(host.node_id):
            return
        if host.node.image.version < len(self.journal):
            self.step(host.node_id, self._news(host))

    def _news(self, host: Host) -> Committed:
        known = host.node.image.version
        records = [record for entry in self.journal[known:] for record in entry]
        return Committed(len(self.journal), records)

    def _catch_up(self, host: Host, life: int) -> None:
        if not host.alive or host.life != life:
            return
        if self.hold_journal.get(host.node_id):
            self.after(5, lambda: self._catch_up(host, life))
            return
        self.step(host.node_id, self._news(host))
        self.step(host.node_id, CaughtUp())

    def release_journal(self, node_id: int) -> None:
        """Let a node's proposal and the news through again."""
        self.hold_journal[node_id] = False
        host = self.hosts[node_id]
        if host.proposing is not None:
            self.after(0, self._arrival(host, host.proposing))
        self.after(0, lambda: self._tell(host, host.life))

    def _arrival(self, host: Host, proposal: Propose) -> Callable[[], None]:
        life = host.life

        def arrive() -> None:
            if self.hold_journal.get(host.node_id) or host.proposing is not proposal:
                return
            if not host.alive or host.life != life:
                return
            if host.paused:
                self.after(10, arrive)
                return
            host.proposing = None
            if proposal.expected_version == len(self.journal):
                self.journal.append(proposal.records)
                self._spread()
                self.step(host.node_id, Committed(len(self.journal), proposal.records, own=True))
            else:
                self._tell(host, life)
                self.step(host.node_id, Refused("the journal moved on", retry=True))

        return arrive

    # ------------------------------------------------------------------------------------------ disks

    def _flush(self, host: Host, partition: TopicPartition) -> None:
        life = host.life
        log = host.store.logs.get(partition)
        if log is None:
            return
        try:
            job = log.prepare_flush()
        except Exception as error:  # whatever the test let fail
            reason = str(error)
            self.after(0, lambda: self._deliver(host.node_id, life, DiskFailed(partition, reason)))
            return

        def finish() -> None:
            if host.alive and host.life == life and host.store.logs.get(partition) is log:
                if self.hold_flushes.get(host.node_id):
                    self.after(5, finish)
                    return
                if job is not None:
                    log.flushed(job)
                self.step(host.node_id, Flushed(partition, log.flushed_offset if job is None else job.offset))

        self.after(self.flush_latency_ms(), finish)

    # ------------------------------------------------------------------------------------------ calls

    def _call(self, host: Host, call: Call) -> None:
        self.calls.append((host.node_id, call))
        key = (host.node_id, call.node_id, call.api_key == ApiKey.FETCH)
        link = self._links.get(key)
        if link is None or link.closed:
            self._connections += 1
            link = self._links[key] = Link(self._connections, host.node_id, call.node_id)
        header = RequestHeader(call.api_key, call.api_version, 0, f"gapless-broker-{host.node_id}")
        body = call.body
        if call.api_key == ApiKey.FETCH:
            data = fetch_peer.encode_request(body, call.api_version)
            body, _ = fetch.decode_request(memoryview(data), 0, call.api_version)
        pending = Pending(call, Request(link.number, header, body))
        link.pending.append(pending)
        target = self.hosts.get(call.node_id)
        if target is None or not target.alive:
            self.after(self.latency_ms(), lambda: self._close(link))
            return
        if not self._lost(host.node_id, call.node_id, call):
            self._pending[pending.request] = (link, pending)
            life = target.life
            self.after(self.latency_ms(), lambda: self._arrive(link, target, life, pending))

        def time_out() -> None:
            if pending in link.pending:
                self._close(link)

        self.after(call.timeout_ms, time_out)

    def _lost(self, source: int, target: int, message: Any) -> bool:
        return (source, target) in self.cuts or self.drop(source, target, message)

    def _arrive(self, link: Link, target: Host, life: int, pending: Pending) -> None:
        if not link.closed and target.alive and not target.node.serving:
            self._close(link)  # nobody listens yet
        elif not link.closed:
            self._deliver(target.node_id, life, pending.request)

    def _reply(self, request: Request, message: Any) -> None:
        answer = self._answers.pop(request, None)
        if answer is not None:
            answer.done, answer.message = True, message
            return
        found = self._pending.pop(request, None)
        if found is None:
            return
        link, pending = found
        pending.answered = True
        pending.message = _through_the_wire(pending.call, message)
        while link.pending and link.pending[0].answered and not link.closed:
            first = link.pending[0]
            if self._lost(link.target, link.source, first.message):
                return  # the connection is stuck until the call times out
            link.pending.pop(0)
            self._answer(link, first)

    def _answer(self, link: Link, pending: Pending) -> None:
        source = self.hosts[link.source]
        life = source.life
        event = PeerAnswered(pending.call, pending.message)
        self.after(self.latency_ms(), lambda: self._deliver(link.source, life, event))

    def _close(self, link: Link) -> None:
        if link.closed:
            return
        link.closed = True
        pending, link.pending = link.pending, []
        for one in pending:
            self._pending.pop(one.request, None)
            one.message = None
            self._answer(link, one)
        target = self.hosts.get(link.target)
        if target is not None and target.alive:
            self._deliver(link.target, target.life, ConnectionClosed(link.number))


def _through_the_wire(call: Call, message: Any) -> Any:
    """What a peer makes of a reply: records become bytes of their own."""
    if call.api_key != ApiKey.FETCH or message is None:
        return message
    parts: Iterable[Any] = fetch.encode_response(message, call.api_version)
    frame = b"".join(part if isinstance(part, bytes) else bytes(part.read(0, part.size)) for part in parts)
    response, _ = fetch_peer.decode_response(memoryview(frame), 0, call.api_version)
    return response
