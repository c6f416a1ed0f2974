"""Calls to other brokers: every one is answered once, with None if it cannot be in time.

Each peer has up to three connections, made when they are first needed: a fetch that waits for records must
hold up nothing, and a slow request no ping. Answers come in the order of the calls, so one that does not
come in time costs the connection. A broken or refused connection puts its broker under suspicion.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from gapless.core.contract import Call, PeerAnswered
from gapless.core.image import Image
from gapless.wire.apis import ApiKey
from gapless.wire.call import answered_call, decode_answer, encode_call
from gapless.wire.errors import MalformedMessage
from gapless.wire.frames import FrameReader

log = logging.getLogger("gapless.broker")

MAX_ANSWER_BYTES = 2**31 - 1
CONNECT_TIMEOUT_S = 3.0
PURPOSES = {int(ApiKey.FETCH): "fetch", int(ApiKey.API_VERSIONS): "ping"}


class _Sent(NamedTuple):
    call: Call
    correlation_id: int
    timer: asyncio.TimerHandle


class Peers:
    """All connections from this broker to others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        own_id: int,
        image: Callable[[], Image],
        report: Callable[[PeerAnswered], None],
        suspect: Callable[[int], None],
    ) -> None:
        self.loop = loop
        self.client_id = f"gapless-broker-{own_id}".encode()
        self.suspect = suspect
        self._image = image
        self._report = report
        self._connections: dict[tuple[int, str], PeerConnection] = {}
        self._closed = False

    def call(self, call: Call) -> None:
        """Ask; `PeerAnswered` follows, never before this returns."""
        broker = self._image().brokers.get(call.node_id)
        if broker is None or self._closed:
            self.loop.call_soon(self.answered, call, None)
            return
        key = (call.node_id, PURPOSES.get(call.api_key, "other"))
        address = (broker.host, broker.port)
        connection = self._connections.get(key)
        if connection is not None and connection.address != address:
            connection.end()
        if connection is None or connection.ended:
            connection = self._connections[key] = PeerConnection(self, call.node_id, address)
            connection.open()
        connection.send(call)

    def answered(self, call: Call, message: Any) -> None:
        """Hand an answer to the rules."""
        if not self._closed:
            self._report(PeerAnswered(call, message))

    def close(self) -> None:
        """End all connections; nobody is told any more."""
        self._closed = True
        for connection in self._connections.values():
            connection.end()


class PeerConnection(asyncio.BufferedProtocol):
    """One connection: calls go out at once, or when it stands; answers come back in that order."""

    def __init__(self, peers: Peers, node_id: int, address: tuple[str, int]) -> None:
        self.address = address
        self.ended = False
        self._peers = peers
        self._node_id = node_id
        self._reader = FrameReader(MAX_ANSWER_BYTES, trusted=True)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._sent: deque[_Sent] = deque()
        self._next_id = 0
        self._opening: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to connect."""
        self._opening = self._peers.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._peers.loop.create_connection(lambda: self, *self.address)
        except OSError:  # also when it takes too long
            self._opening = None
            self.end()
            self._peers.suspect(self._node_id)

    def send(self, call: Call) -> None:
        """Send a call, or keep it until the connection stands."""
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        frame = encode_call(call.api_key, call.api_version, self._next_id, self._peers.client_id, call.body)
        timer = self._peers.loop.call_later(call.timeout_ms / 1000, self.end)
        self._sent.append(_Sent(call, self._next_id, timer))
        if self._transport is not None:
            self._transport.write(frame)
        else:
            self._unsent.append(frame)

    # --------------------------------------------------------------------------------- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if self.ended:
            transport.abort()  # type: ignore[attr-defined]
            return
        for frame in self._unsent:
            transport.write(frame)  # type: ignore[attr-defined]
        self._unsent.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.received(nbytes):
                if not self.ended:
                    self._take(frame)
        except MalformedMessage as error:
            log.warning("broker %d answers what cannot be understood: %s", self._node_id, error)
            self.end()

    def _take(self, frame: memoryview) -> None:
        correlation_id = answered_call(frame)
        if not self._sent or self._sent[0].correlation_id != correlation_id:
            raise MalformedMessage(f"answer {correlation_id} was not asked for")
        call = self._sent[0].call
        message = decode_answer(call.api_key, call.api_version, frame)
        self._sent.popleft().timer.cancel()
        self._peers.answered(call, message)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended:
            self.end()
            self._peers.suspect(self._node_id)

    def end(self) -> None:
        """Close, and answer with None what waits; the next call makes a new connection."""
        if self.ended:
            return
        self.ended = True
        if self._transport is not None:
            self._transport.abort()
        elif self._opening is not None:
            self._opening.cancel()
        lost, self._sent = self._sent, deque()
        for each in lost:
            each.timer.cancel()
            # Not at once: whoever has called may still be in the middle of calling.
            self._peers.loop.call_soon(self._peers.answered, each.call, None)
