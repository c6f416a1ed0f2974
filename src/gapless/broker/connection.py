"""One client's connection: frames in, replies out in request order, memory bounded both ways.

Requests are handed to the rules as they arrive; replies wait for those before them. A client that sends
faster than it reads is not read from; one that never finishes a frame or never reads is closed by the sweep.
Records are read from the log only when the client takes them, a chunk at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from gapless.core.api.api_versions import describe_versions
from gapless.core.api.registry import serves
from gapless.core.contract import Request
from gapless.core.log import LogFailed
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode, MalformedMessage
from gapless.wire.frames import FrameReader
from gapless.wire.request import RequestHeader, decode_body, decode_header, encode_reply, peek

if TYPE_CHECKING:
    from gapless.broker.shell import Shell
    from gapless.storage.slices import ReadableSlice

MAX_PENDING_REQUESTS = 64
MAX_PLAIN_REQUEST_BYTES = 1024 * 1024
"""Of any request but Produce: what it decodes to must not be much larger than what was sent."""
CHUNK_BYTES = 256 * 1024
WRITE_BUFFER_BYTES = 1024 * 1024


class _Waiting:
    """The place of a request among its connection's replies."""

    __slots__ = ("answered", "arrived", "message")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.answered = False
        self.message: Any = None


class Connection(asyncio.BufferedProtocol):
    """Framing, order of replies and back-pressure; the rules are elsewhere."""

    def __init__(self, shell: Shell, number: int) -> None:
        self.shell = shell
        self.number = number
        self.peer = "?"
        self.closed = False
        self.reader = FrameReader(shell.max_request_bytes)
        self.last_active = monotonic()
        self.frame_started: float | None = None
        self._transport: asyncio.Transport | None = None
        self._pending: dict[Request, _Waiting] = {}
        self._outgoing: deque[Any] = deque()
        self._slice_position = 0
        self._writing_paused = False
        self._reading_paused = False

    # --------------------------------------------------------------------------------- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        self.peer = f"{host}:{port}"
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)  # type: ignore[attr-defined]
        self.shell.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._pending.clear()
        self._outgoing.clear()
        self.shell.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = monotonic()
        try:
            frames = self.reader.received(nbytes)
        except MalformedMessage as error:
            self.close(str(error))
            return
        for frame in frames:
            self._on_frame(frame)
            if self.closed:
                return
        self._note_partial_frame()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.last_active = monotonic()
        self._pump()

    def _note_partial_frame(self) -> None:
        if not self.reader.buffered_bytes:
            self.frame_started = None
        elif self.frame_started is None:
            self.frame_started = self.last_active
        self.shell.note_buffered(self)

    # ------------------------------------------------------------------------------------------ requests

    def _on_frame(self, frame: memoryview) -> None:
        self.shell.metrics.received_bytes += len(frame) + 4
        self.frame_started = None
        try:
            request = self._decode(frame)
        except MalformedMessage as error:
            self.close(f"malformed request: {error}")
            return
        if request is None:
            return
        self._pending[request] = _Waiting(self.last_active)
        if len(self._pending) >= MAX_PENDING_REQUESTS:
            self._pause_reading()
        self.shell.step(request)

    def _decode(self, frame: memoryview) -> Request | None:
        api_key, api_version, correlation_id = peek(frame)
        if not serves(api_key, api_version):
            self._refuse_version(api_key, api_version, correlation_id)
            return None
        if api_key != ApiKey.PRODUCE and len(frame) > MAX_PLAIN_REQUEST_BYTES:
            raise MalformedMessage(
                f"{ApiKey(api_key).name} of {len(frame)} bytes; the limit for it is {MAX_PLAIN_REQUEST_BYTES}"
            )
        header, offset = decode_header(frame)
        return Request(self.number, header, decode_body(header, frame, offset))

    def _refuse_version(self, api_key: int, api_version: int, correlation_id: int) -> None:
        if api_key != ApiKey.API_VERSIONS:
            self.close(f"API {api_key} version {api_version} is not served here")
            return
        header = RequestHeader(api_key, 0, correlation_id, None)
        request = Request(self.number, header, None)
        self._pending[request] = _Waiting(self.last_active)
        self.answer(request, describe_versions(ErrorCode.UNSUPPORTED_VERSION))

    # ------------------------------------------------------------------------------------------- replies

    def answer(self, request: Request, message: Any) -> None:
        """Take a reply; it goes out once all before it have. None stands for a reply that nobody awaits."""
        waiting = self._pending.get(request)
        if waiting is None:
            return
        waiting.message = message
        waiting.answered = True
        pending = self._pending
        while pending:
            first = next(iter(pending))
            waiting = pending[first]
            if not waiting.answered:
                break
            del pending[first]
            if waiting.message is not None:
                self._outgoing.extend(encode_reply(first.header, waiting.message))
            self.shell.metrics.answered(first.header.api_key, waiting.arrived)
        self._pump()

    def _pump(self) -> None:
        """Write as much as the client takes, then read on if there is room again."""
        outgoing = self._outgoing
        transport = self._transport
        if transport is None or self.closed:
            return
        while outgoing and not self._writing_paused:
            part = outgoing.popleft()
            if not isinstance(part, bytes | bytearray):
                part = self._next_chunk(part)
                if part is None:
                    return
            self.shell.metrics.sent_bytes += len(part)
            transport.write(part)
        if self._reading_paused and not outgoing and len(self._pending) < MAX_PENDING_REQUESTS:
            self._reading_paused = False
            transport.resume_reading()

    def _next_chunk(self, records: ReadableSlice) -> bytes | memoryview | None:
        wanted = min(CHUNK_BYTES, records.size - self._slice_position)
        try:
            chunk = records.read(self._slice_position, wanted)
        except LogFailed as error:
            self.close(f"records could not be read: {error}")
            return None
        self._slice_position += wanted
        if self._slice_position < records.size:
            self._outgoing.appendleft(records)
        else:
            self._slice_position = 0
        return chunk

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    # ------------------------------------------------------------------------------------------- the end

    def stalled_since(self) -> float:
        """Since when this connection has made no progress: no whole frame, nothing read by its peer."""
        return self.last_active if self.frame_started is None else min(self.last_active, self.frame_started)

    def close(self, reason: str) -> None:
        """End the connection because of what its peer does; the reason goes to the log."""
        if not self.closed:
            self.shell.log_refusal(self, reason)
            self.abort()

    def abort(self) -> None:
        """End the connection now; `connection_lost` follows."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
