"""Every connection, of brokers and of clients: requests arrive in order, and so do their answers.

As with TCP, who gives up a connection does not call back what is under way: it still arrives, though nobody
waits for the answer. A way that is blocked holds what is sent on it until it is open again; what is *lost*
leaves its connection stuck until the one who waits gives up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from gapless.core.contract import ConnectionClosed, PeerLost, Request
from gapless.wire import fetch, fetch_peer
from gapless.wire.apis import ApiKey
from gapless.wire.fetch import FetchResponse
from gapless.wire.fetch_peer import FetchedRecords
from gapless.wire.request import RequestHeader

if TYPE_CHECKING:
    from gapless.simulator.world.hosts import Host
    from gapless.simulator.world.world import World

Then = Callable[[Any], None]
Way = tuple[int, int]
"""From whom to whom. Brokers have small numbers, clients large ones."""
STRANDED_MS = 10
"""How long after a request its author finds that the connection is of no use."""
NEVER_MS = 2**63
_FETCH = int(ApiKey.FETCH)
_END_TXN = int(ApiKey.END_TXN)
_MARKERS = int(ApiKey.WRITE_TXN_MARKERS)
_END_WITH_ITS_EPOCH_FROM, _EACH_WITH_ITS_EPOCH = 5, 2


@dataclass(eq=False, slots=True)
class Exchange:
    """A request, and what its author does with the answer (None if there will be none)."""

    request: Request
    then: Then
    due_ms: int
    """Until when the answer is waited for."""
    answered: bool = False
    message: Any = None


@dataclass(eq=False, slots=True)
class Channel:
    """One connection."""

    number: int
    source: int
    target: int
    life: int
    """The target's, when the connection was made."""
    waiting: deque[Exchange] = field(default_factory=deque)
    """Whose answers have not arrived."""
    unanswered: deque[Exchange] = field(default_factory=deque)
    """Whose answers have not left: they leave in the order of the requests."""
    closed: bool = False
    broken: bool = False
    """Closed by a reset: what was under way is gone."""
    stuck: bool = False
    there_ms: int = 0
    back_ms: int = 0
    """When the last message arrives in each direction: nothing may overtake it."""
    look_ms: int = NEVER_MS
    """When it is looked at next whether an answer is overdue."""


class Network:
    """All channels, and what is wrong with the ways between those who talk."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._channels: dict[tuple[int, int, Any], Channel] = {}
        self._exchanges: dict[Request, tuple[Channel, Exchange]] = {}
        self._numbers = 0
        self.latency_ms: Callable[[], int] = lambda: 1
        self.slower_ms: dict[Way, int] = {}
        self.through_bytes = False
        """Whether fetches between brokers are encoded and decoded as on a wire; slower, with the same end."""
        self.blocked: dict[Way, list[Callable[[], None]]] = {}
        """Ways on which nothing arrives, with what is held on each."""
        self.lost: Callable[[int, int, Any], bool] | None = None
        """Whether a message from one to another is lost, if anybody is to decide that."""
        self.losing: dict[Way, int] = {}
        """How many of the next messages on a way are lost."""
        self.stranding: dict[Way, int] = {}
        """Ways whose next request arrives so much later, when its author has long sent it again."""
        self.struck: Callable[[Way, bool], None] = lambda way, lost: None
        """Called with each way on which a message was lost so, or came late."""
        self.sent = 0

    # ------------------------------------------------------------------------------------------ talking

    def ask(
        self, way: Way, purpose: Any, header: RequestHeader, body: Any, timeout_ms: int, then: Then
    ) -> Channel:
        """Send a request over the connection that `source` has with `target` for a purpose."""
        channel = self._channel(way, purpose)
        if self.through_bytes:
            body = self._encoded(header, body)
        request = Request(channel.number, header, body, "/127.0.0.1")
        world = self._world
        exchange = Exchange(request, then, world.agenda.now_ms + timeout_ms)
        channel.waiting.append(exchange)
        channel.unanswered.append(exchange)
        self.sent += 1
        host = world.hosts.get(channel.target)
        if host is None or (not host.alive and way not in self.blocked):
            world.after(self._delay_ms(way), lambda: self.break_off(channel))
            return channel
        self._exchanges[request] = (channel, exchange)
        late_ms = self.stranding.pop(way, None) if self.stranding and _may_be_late(header, body) else None
        if late_ms is not None:
            self.struck(way, False)
            channel.there_ms = world.now_ms + late_ms
            exchange.due_ms = world.now_ms + STRANDED_MS
        self._travel(channel, way, body, partial(self._arrive, channel, host, request))
        if exchange.due_ms < channel.look_ms:
            self._look_at(channel, exchange.due_ms)
        return channel

    def _channel(self, way: Way, purpose: Any) -> Channel:
        key = (*way, purpose)
        channel = self._channels.get(key)
        if channel is None or channel.closed:
            self._numbers += 1
            host = self._world.hosts.get(way[1])
            channel = Channel(self._numbers, *way, 0 if host is None else host.life)
            self._channels[key] = channel
        return channel

    @staticmethod
    def _encoded(header: RequestHeader, body: Any) -> Any:
        if header.api_key == _FETCH and body.replica_id >= 0:
            data = fetch_peer.encode_request(body, header.api_version)
            body, _ = fetch.decode_request(memoryview(data), 0, header.api_version)
        return body

    def _travel(self, channel: Channel, way: Way, message: Any, arrive: Callable[[], None]) -> None:
        """Let something arrive after what was sent before it; or never."""
        if channel.stuck:
            return
        if (self.losing and self._is_to_be_lost(way)) or (self.lost and self.lost(*way, message)):
            channel.stuck = True
            return
        if way in self.blocked:
            self.blocked[way].append(lambda: self._travel(channel, way, message, arrive))
            return
        agenda = self._world.agenda
        due_ms = agenda.now_ms + self._delay_ms(way)
        if way[0] == channel.source:
            channel.there_ms = due_ms = max(due_ms, channel.there_ms)
        else:
            channel.back_ms = due_ms = max(due_ms, channel.back_ms)
        agenda.at(due_ms, arrive)

    def _delay_ms(self, way: Way) -> int:
        return self.latency_ms() + (self.slower_ms.get(way, 0) if self.slower_ms else 0)

    def _is_to_be_lost(self, way: Way) -> bool:
        left = self.losing.pop(way, 0)
        if left > 1:
            self.losing[way] = left - 1
        if left:
            self.struck(way, True)
        return left > 0

    def _arrive(self, channel: Channel, host: Host, request: Request) -> None:
        if channel.broken or not host.alive or host.life != channel.life:
            return  # the connection has ended, with the process or without it
        if not host.node.serving:
            self.break_off(channel)  # nobody listens yet
            return
        self._world.step(host.node_id, request)

    # ------------------------------------------------------------------------------------------ answering

    def reply(self, request: Request, message: Any) -> None:
        """A node answers; the answer leaves when all before it on its connection have left."""
        found = self._exchanges.pop(request, None)
        if found is None:
            return
        channel, exchange = found
        exchange.answered = True
        if message is not None and request.header.api_key == _FETCH and request.body.replica_id >= 0:
            message = self._as_received(request.header, message)
        exchange.message = message
        unanswered = channel.unanswered
        while unanswered and unanswered[0].answered and not channel.closed:
            first = unanswered.popleft()
            if first.message is None:  # the client asked not to be answered
                channel.waiting.remove(first)
            else:
                way = (channel.target, channel.source)
                self._travel(channel, way, first.message, partial(self._answer, channel, first))

    @staticmethod
    def _answer(channel: Channel, exchange: Exchange) -> None:
        if not channel.closed:
            channel.waiting.remove(exchange)
            exchange.then(exchange.message)

    def _as_received(self, header: RequestHeader, message: FetchResponse) -> FetchResponse:
        """What a follower makes of a reply: records become bytes of its own."""
        if self.through_bytes:
            parts: list[Any] = fetch.encode_response(message, header.api_version)
            frame = b"".join(
                part if isinstance(part, bytes) else bytes(part.read(0, part.size)) for part in parts
            )
            response, _ = fetch_peer.decode_response(memoryview(frame), 0, header.api_version)
            return response
        return _with_bytes(message)

    # ------------------------------------------------------------------------------------- broken channels

    def _look_at(self, channel: Channel, due_ms: int) -> None:
        """See, at that time, whether an answer is overdue: once for all that are waited for by then."""
        channel.look_ms = due_ms

        def look() -> None:
            if channel.closed or channel.look_ms != due_ms:
                return
            channel.look_ms = NEVER_MS
            next_ms = min((exchange.due_ms for exchange in channel.waiting), default=NEVER_MS)
            if next_ms <= due_ms:
                self._close(channel)
            elif next_ms < NEVER_MS:
                self._look_at(channel, next_ms)

        self._world.agenda.at(due_ms, look)

    def _close(self, channel: Channel) -> None:
        """The one who asked hangs up; what is under way arrives all the same, and then the end."""
        channel.closed = True
        waiting, channel.waiting = channel.waiting, deque()
        way = (channel.source, channel.target)
        if not channel.stuck:
            self._travel(channel, way, None, lambda: self._end(channel))
        else:
            self._world.after(self._delay_ms(way), lambda: self._end(channel))
        for exchange in waiting:
            exchange.then(None)

    def _end(self, channel: Channel) -> None:
        host = self._world.hosts.get(channel.target)
        if host is not None and host.alive and host.life == channel.life:
            self._world.step(host.node_id, ConnectionClosed(channel.number))

    def break_off(self, channel: Channel) -> None:
        """A connection is reset: both ends know at once, and nothing of it arrives any more."""
        if channel.closed:
            return
        channel.closed = channel.broken = True
        waiting, channel.waiting = channel.waiting, deque()
        self._end(channel)
        for exchange in waiting:
            self._exchanges.pop(exchange.request, None)
        source = self._world.hosts.get(channel.source)
        if source is not None and source.alive:
            self._world.deliver(source, source.life, PeerLost(channel.target))
        for exchange in waiting:
            exchange.then(None)

    def ended(self, node_id: int) -> None:
        """A process is gone: whoever talked with it hears so, unless the way is blocked."""
        for channel in list(self._channels.values()):
            if channel.closed:
                continue
            if channel.source == node_id:
                channel.waiting.clear()
                channel.closed = True
                if not channel.stuck:
                    way = (channel.source, channel.target)
                    self._travel(channel, way, None, lambda c=channel: self._end(c))  # type: ignore[misc]
            elif channel.target == node_id:
                way = (channel.target, channel.source)
                if way not in self.blocked:
                    delay_ms = self._delay_ms(way)
                    self._world.after(delay_ms, lambda c=channel: self.break_off(c))  # type: ignore[misc]

    def hang_up(self, channel: Channel) -> None:
        """A node ends a connection whose peer broke the protocol."""
        self.break_off(channel)

    def is_open(self, way: Way) -> bool:
        """Whether there is a connection for general purposes, as far as the one who asks can know."""
        channel = self._channels.get((*way, None))
        return channel is not None and not channel.closed

    def channel(self, number: int) -> Channel | None:
        """An open connection by its number."""
        for channel in self._channels.values():
            if channel.number == number and not channel.closed:
                return channel
        return None

    # ---------------------------------------------------------------------------------------------- faults

    def block(self, source: int, target: int) -> None:
        """From now on nothing arrives on this way."""
        self.blocked.setdefault((source, target), [])

    def open(self, source: int, target: int) -> None:
        """What was held on this way is sent on."""
        for send in self.blocked.pop((source, target), ()):
            send()

    def heal(self) -> None:
        """All ways are open, and as fast as they were."""
        self.slower_ms.clear()
        self.losing.clear()
        self.stranding.clear()
        for way in list(self.blocked):
            self.open(*way)

    def reset(self, source: int, target: int) -> None:
        """All connections between two break."""
        for channel in list(self._channels.values()):
            if (channel.source, channel.target) == (source, target):
                self.break_off(channel)


def _may_be_late(header: RequestHeader, body: Any) -> bool:
    """Not the end of a transaction in the older protocol: late, it would end the next one (KIP-890)."""
    if header.api_key == _MARKERS:
        return all(marker.transaction_version >= _EACH_WITH_ITS_EPOCH for marker in body.markers)
    return header.api_key != _END_TXN or header.api_version >= _END_WITH_ITS_EPOCH_FROM


def _with_bytes(message: FetchResponse) -> FetchResponse:
    """The same answer, with records as the bytes that they are at this moment."""
    for topic in message.topics:
        for result in topic.partitions:
            records: Any = result.records
            if records is not None:
                result.records = FetchedRecords(memoryview(bytes(records.read(0, records.size))))
    return message
