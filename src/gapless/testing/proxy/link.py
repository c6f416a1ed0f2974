"""One connection through the proxy: two sockets, and what the network does between them.

A blocked link is not read from. Its bytes wait in the kernel, its ends see neither data nor an end of the
connection, and when it is unblocked everything goes on where it stood: that is how TCP behaves when packets
are lost for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct
from typing import Protocol, cast

from gapless.testing.proxy.faults import Fate, Network, Plan
from gapless.testing.proxy.frames import (
    ANSWER_HEAD_BYTES,
    REQUEST_HEAD_BYTES,
    ConnectionCut,
    Cutter,
    Verdict,
    read_request_head,
)
from gapless.wire.apis import ApiKey

_CORRELATION_ID = Struct(">i")
_NAMES_BROKERS = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER)
_FATES_OF_REQUESTS = {Fate.LOSE_REQUEST: Verdict.CUT, Fate.TEAR_REQUEST: Verdict.TEAR}


class Surroundings(Protocol):
    """What a link needs to know of the proxy."""

    network: Network
    plan: Plan
    links: set[Link]

    def target(self, broker: int) -> tuple[str, int] | None:
        """Where the broker really listens; None while that is not known."""

    def renamed(self, answer: bytes) -> bytes:
        """An answer in which brokers have the proxy's addresses."""

    renames: bool
    """Whether answers that name brokers must be changed at all."""


class End(asyncio.Protocol):
    """One of the two sockets: what arrives here goes to the other, sooner or later."""

    def __init__(self, link: Link, cutter: Cutter) -> None:
        self._link = link
        self._cutter = cutter
        self.transport: asyncio.Transport | None = None
        self.other: End | None = None
        self.lost = False
        self._may_write = True
        self._reading = True
        self._early: deque[bytes] = deque()
        """What came for this end before it was connected, or while the link was blocked; empty: its end."""
        self._late: deque[tuple[float, bytes | None]] = deque()
        """What is under way to this end over a slow network, with its time; None is the end of all."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        self._link.update()
        self.deliver_early()

    def data_received(self, data: bytes) -> None:
        try:
            passed = self._cutter.feed(data)
        except ConnectionCut as cut:
            if cut.passed:
                self._send(cut.passed)
            self._link.cut()
            return
        if passed:
            self._send(passed)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self.other is not None:
            self.other.receive(None, self._link.delay_s)
        self._link.end_lost()

    def pause_writing(self) -> None:
        self._may_write = False
        self._link.update()

    def resume_writing(self) -> None:
        self._may_write = True
        self._link.update()

    def _send(self, data: bytes) -> None:
        if self.other is not None:
            self.other.receive(data, self._link.delay_s)

    def receive(self, data: bytes | None, delay_s: float) -> None:
        """Something is on its way to this end; None: the other end was closed."""
        if not delay_s and not self._late:
            self._write(data)
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        if self._late:
            due = max(due, self._late[-1][0])  # a stream keeps its order
        self._late.append((due, data))
        loop.call_at(due, self._arrive)

    def _arrive(self) -> None:
        if self._late:
            self._write(self._late.popleft()[1])

    def _write(self, data: bytes | None) -> None:
        if self.transport is None or self._link.blocked:
            self._early.append(data or b"")
        elif not data:
            self.transport.close()
        elif not self.transport.is_closing():  # else nobody is there any more who could read it
            self.transport.write(data)

    def deliver_early(self) -> None:
        """Write what had to wait."""
        while self._early and self.transport is not None and not self._link.blocked:
            self._write(self._early.popleft())

    def read_if(self, allowed: bool) -> None:
        """Take what arrives, or leave it where it is."""
        if self.transport is None or self.transport.is_closing() or allowed == self._reading:
            return
        self._reading = allowed
        if allowed:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    @property
    def may_be_written_to(self) -> bool:
        return self._may_write


class Link:
    """A connection to one broker, from a client or from another broker."""

    def __init__(self, broker: int, around: Surroundings) -> None:
        self._broker = broker
        self._around = around
        self._sender: int | None = None
        self._silent = False
        self._under_way: dict[int, tuple[int, Fate]] = {}
        self._dialling: asyncio.Task[None] | None = None
        self.blocked = False
        self.delay_s = 0.0
        self.client = End(self, Cutter(REQUEST_HEAD_BYTES, self._judge_request, bytes))
        self.server = End(self, Cutter(ANSWER_HEAD_BYTES, self._judge_answer, around.renamed))
        self.client.other, self.server.other = self.server, self.client
        around.links.add(self)
        self.update()

    def accepted(self) -> asyncio.Protocol:
        """The client's end, for its socket; the broker is dialled at once."""
        self._dialling = asyncio.get_running_loop().create_task(self._dial())
        return self.client

    async def _dial(self) -> None:
        address = self._around.target(self._broker)
        try:
            if address is None:
                raise ConnectionRefusedError("the broker was not started yet")
            await asyncio.get_running_loop().create_connection(lambda: self.server, *address)
        except OSError:
            self.server.lost = True
            self.client.receive(None, 0)

    def update(self) -> None:
        """The network has changed, or an end has; go on, or stop."""
        was_blocked = self.blocked
        network = self._around.network
        self.blocked = network.blocks(self._sender, self._broker)
        self.delay_s = network.delay_s(self._sender, self._broker)
        if was_blocked and not self.blocked:
            self.client.deliver_early()
            self.server.deliver_early()
        self.client.read_if(not self.blocked and self.server.may_be_written_to)
        self.server.read_if(not self.blocked and self.client.may_be_written_to)

    def cut(self) -> None:
        """End the connection at once: what was written before still goes out to the broker."""
        if self.server.transport is not None:
            self.server.transport.close()
        self._abort(self.client)

    def abort(self) -> None:
        """End everything without a word."""
        if self._dialling is not None:
            self._dialling.cancel()
        self._abort(self.client)
        self._abort(self.server)

    def _abort(self, end: End) -> None:
        if end.transport is not None:
            end.transport.abort()

    def end_lost(self) -> None:
        """One of the ends is gone; with both, so is the link."""
        if self.client.lost and (self.server.lost or self.server.transport is None):
            self._around.links.discard(self)

    # --------------------------------------------------------------------------------------- messages

    def _judge_request(self, head: bytes) -> Verdict:
        request = read_request_head(head)
        if request is None:
            return Verdict.PASS
        if request.sender != self._sender:
            self._sender = request.sender
            self.update()
        fate = Fate.DELIVER
        if request.api_key == ApiKey.PRODUCE and request.wants_answer:
            fate = self._around.plan.take(self._broker)
        if fate in _FATES_OF_REQUESTS:
            self._around.plan.done[fate] += 1
            return _FATES_OF_REQUESTS[fate]
        if request.wants_answer:
            self._under_way[request.correlation_id] = (request.api_key, fate)
        return Verdict.PASS

    def _judge_answer(self, head: bytes) -> Verdict:
        if len(head) < _CORRELATION_ID.size:
            return Verdict.PASS
        api_key, fate = self._under_way.pop(_CORRELATION_ID.unpack(head)[0], (-1, Fate.DELIVER))
        if fate is not Fate.DELIVER:
            self._around.plan.done[fate] += 1
        if fate is Fate.LOSE_ANSWER:
            return Verdict.CUT
        self._silent |= fate is Fate.SILENCE
        if self._silent:
            return Verdict.SWALLOW
        return Verdict.CHANGE if self._around.renames and api_key in _NAMES_BROKERS else Verdict.PASS
