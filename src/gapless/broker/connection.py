"""One client's connection: frames in, replies out in request order, memory bounded both ways.

Produce requests are taken as they arrive, so that several can wait for one flush. A follower may have a
second fetch taken while its first waits for news: it names more partitions. Any other request waits until all
before it are answered, as in Kafka. While a client does not read its replies, its requests are not read
either; one that never finishes a frame or never reads is closed by the sweep. Records are read from the
log only when the client takes them, a chunk at a time.
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
MAX_PENDING_FETCHES = 2
MAX_PLAIN_REQUEST_BYTES = 1024 * 1024
"""Of any request but Produce: what it decodes to must not be much larger than what was sent."""
CHUNK_BYTES = 256 * 1024
WRITE_BUFFER_BYTES = 1024 * 1024
TURN_S = 0.01
"""How long one connection's requests are worked on before the others get their turn."""
PRODUCE = int(ApiKey.PRODUCE)
FETCH = int(ApiKey.FETCH)
BROKERS = "gapless-broker-"
"""How brokers begin to introduce themselves (`peers`)."""


class Connection(asyncio.BufferedProtocol):
    """Framing, order of replies and back-pressure; the rules are elsewhere."""

    def __init__(self, shell: Shell, number: int) -> None:
        self.shell = shell
        self.number = number
        self.peer = self._host = "?"
        self.closed = False
        self._reader = FrameReader(shell.max_request_bytes)
        self._last_active = monotonic()
        self._frame_started: float | None = None
        self._transport: asyncio.Transport | None = None
        self._frames: deque[memoryview] = deque()
        self._pending: dict[Request, float] = {}
        """Requests whose reply has not gone out, in their order, and when each arrived."""
        self._answers: dict[Request, Any] = {}
        """Replies that cannot go out yet, because one before them is missing."""
        self._pending_kind = -1
        self._is_broker = False
        self._outgoing: deque[Any] = deque()
        self._slice_position = 0
        self._taking = False
        self._holds_requests = False
        self._writing_paused = False
        self._reading_paused = False

    # --------------------------------------------------------------------------------- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        self.peer, self._host = f"{host}:{port}", f"/{host}"
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)  # type: ignore[attr-defined]
        self.shell.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._frames.clear()
        self._pending.clear()
        self._answers.clear()
        self._outgoing.clear()
        self._reader.forget()  # at once, and not when this object's references are collected
        self.shell.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._last_active = monotonic()
        reader = self._reader
        try:
            frames = reader.received(nbytes)
        except MalformedMessage as error:
            self.close(str(error))
            return
        if not reader.is_amid_frame:
            self._frame_started = None
        elif frames or self._frame_started is None:
            self._frame_started = self._last_active
        if frames:
            self._frames.extend(frames)
            self._take_frames()
        else:
            self._note_held()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._last_active = monotonic()
        self._pump()
        self._take_frames()

    # ------------------------------------------------------------------------------------------ requests

    def _take_frames(self) -> None:
        """Work through the frames as far as their turn has come; read no more while some wait."""
        if self._taking:
            return
        self._taking = True
        frames = self._frames
        turn_began = monotonic()
        while frames and not self.closed and self._may_take(frames[0]):
            self._on_frame(frames.popleft())
            if frames and monotonic() > turn_began + TURN_S:
                self.shell.call_soon(self._take_frames)  # a long pipeline must not keep others waiting
                break
        self._taking = False
        if self._transport is None or self.closed:
            return
        self._note_held()
        if bool(frames) == self._reading_paused:
            return
        self._reading_paused = bool(frames)
        if self._reading_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _note_held(self) -> None:
        """Tell what requests hold that wait or have not arrived as a whole, when there are or were any."""
        held_before = self._holds_requests
        self._holds_requests = self._reader.is_amid_frame or bool(self._frames)
        if held_before or self._holds_requests:
            self.shell.note_held(self)

    def _may_take(self, frame: memoryview) -> bool:
        if self._writing_paused or self._outgoing:
            return False
        if not self._pending:
            return True
        if len(frame) < 2 or frame[0] != 0 or frame[1] != self._pending_kind:
            return False
        if self._pending_kind == PRODUCE:
            return len(self._pending) < MAX_PENDING_REQUESTS
        return self._is_broker and self._pending_kind == FETCH and len(self._pending) < MAX_PENDING_FETCHES

    def _on_frame(self, frame: memoryview) -> None:
        self.shell.metrics.received_bytes += len(frame) + 4
        try:
            request = self._decode(frame)
        except MalformedMessage as error:
            self.close(f"malformed request: {error}")
            return
        self._pending_kind = request.header.api_key
        self._is_broker = (request.header.client_id or "").startswith(BROKERS)
        self._pending[request] = self._last_active
        if request.body is None:
            self.answer(request, describe_versions(ErrorCode.UNSUPPORTED_VERSION))
        else:
            self.shell.step(request)

    def _decode(self, frame: memoryview) -> Request:
        """The request in a frame; one that asks for API versions in an unknown version has no body."""
        api_key, api_version, correlation_id = peek(frame)
        if not serves(api_key, api_version):
            if api_key != ApiKey.API_VERSIONS:
                raise MalformedMessage(f"API {api_key} version {api_version} is not served here")
            return Request(self.number, RequestHeader(api_key, 0, correlation_id, None), None)
        if api_key != PRODUCE and len(frame) > MAX_PLAIN_REQUEST_BYTES:
            raise MalformedMessage(
                f"{ApiKey(api_key).name} of {len(frame)} bytes; the limit for it is {MAX_PLAIN_REQUEST_BYTES}"
            )
        header, offset = decode_header(frame)
        return Request(self.number, header, decode_body(header, frame, offset), self._host)

    # ------------------------------------------------------------------------------------------- replies

    def answer(self, request: Request, message: Any) -> None:
        """Take a reply; it goes out once all before it have. None stands for one that nobody awaits."""
        pending, answers = self._pending, self._answers
        if request not in pending:
            return
        answers[request] = message
        while pending and (first := next(iter(pending))) in answers:
            message = answers.pop(first)
            if message is not None:
                try:
                    self._outgoing.extend(encode_reply(first.header, message))
                except Exception as error:  # noqa: BLE001 - the encoder is kafka-python's; it raises what it likes
                    self.shell.request_failed(first, error)
                    return
            self.shell.metrics.answered(first.header.api_key, pending.pop(first))
        self._pump()
        if self._frames:
            self._take_frames()

    def _pump(self) -> None:
        """Write as much as the client takes."""
        outgoing = self._outgoing
        transport = self._transport
        if transport is None:
            return
        while outgoing and not self._writing_paused and not self.closed:
            part = outgoing.popleft()
            if not isinstance(part, bytes):
                part = self._next_chunk(part)
                if part is None:
                    return
            self.shell.metrics.sent_bytes += len(part)
            transport.write(part)

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

    # ------------------------------------------------------------------------------------------- the end

    @property
    def held_bytes(self) -> int:
        """What requests hold that have not been taken yet."""
        return self._reader.held_bytes + sum(len(frame) for frame in self._frames)

    def stalled_since(self) -> float:
        """Since when this connection has made no progress: no whole frame, nothing read by its peer."""
        if self._frame_started is None:
            return self._last_active
        return min(self._last_active, self._frame_started)

    def close(self, reason: str) -> None:
        """End the connection because of what its peer does; the reason goes to the log."""
        if not self.closed:
            self.shell.log_refusal(self, reason)
            self.abort()

    def abort(self) -> None:
        """End the connection now; `connection_lost` follows."""
        self.closed = True
        self._frames.clear()
        self._reader.forget()
        if self._transport is not None:
            self._transport.abort()
