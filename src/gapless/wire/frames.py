"""Cuts a byte stream into Kafka's length-prefixed frames, for use under `asyncio.BufferedProtocol`.

`get_buffer` says where the next bytes may be put, `received` how many were; complete frames come back without
their length, each a writable view of memory that the reader never touches again.

What is held follows what has arrived, never what a length field promises: the part of a frame that is there,
in a buffer at most four times as large. Reads go through scratch blocks that readers borrow for a read and
give back after it. A frame that fits into a scratch block is copied out of it once. A larger one is assembled
where it stays: only what arrived before the buffer had its final size is copied, a third of a 1 MB frame. A
trusted peer's length is believed, so that at most one scratch block of a frame is copied.
"""

from __future__ import annotations

from struct import Struct

from gapless.wire.errors import MalformedMessage

SCRATCH_BYTES = 64 * 1024
_GROWTH = 4
_LENGTH = Struct(">i")
_LENGTH_BYTES = 4
_HTTP_METHODS = frozenset((b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"CONN", b"PRI "))

_free_scratch: list[bytearray] = []
_MAX_FREE_SCRATCH = 16


def _likely_protocol(first_bytes: bytearray) -> str:
    """What a peer that does not speak Kafka's protocol probably speaks instead."""
    if first_bytes.startswith(b"\x16\x03"):
        return "; it looks like TLS, which is not spoken on this port"
    if bytes(first_bytes) in _HTTP_METHODS:
        return "; it looks like HTTP, which is not spoken on this port"
    return ""


class FrameReader:
    """The frames of one connection."""

    __slots__ = (
        "_assembly", "_filled", "_frame_bytes", "_growth", "_leftover", "_max_frame_bytes", "_scratch",
        "is_amid_frame",
    )  # fmt: skip

    def __init__(self, max_frame_bytes: int, *, trusted: bool = False) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._growth = max_frame_bytes if trusted else _GROWTH
        self.is_amid_frame = False
        """Whether a part of a frame has arrived, but not all of it."""
        self._scratch: bytearray | None = None
        self._leftover = b""  # the beginning of a frame that will fit into a scratch block
        self._assembly: bytearray | None = None  # a larger frame, with its length in front
        self._filled = 0  # bytes of the assembly that have arrived
        self._frame_bytes = 0  # what the assembly will have in the end, length included

    @property
    def buffered_bytes(self) -> int:
        """Bytes that have arrived of a frame that is not complete."""
        return self._filled if self._assembly is not None else len(self._leftover)

    @property
    def held_bytes(self) -> int:
        """The memory that a frame takes which is not complete: up to four times what has arrived of it."""
        return len(self._leftover) if self._assembly is None else len(self._assembly)

    def get_buffer(self, size_hint: int) -> memoryview:
        """Where the next bytes belong; never empty. The hint is ignored, as the protocol allows."""
        if self._assembly is not None:
            return self._room_in_assembly(self._assembly)
        scratch = self._scratch
        if scratch is None:
            scratch = self._scratch = _free_scratch.pop() if _free_scratch else bytearray(SCRATCH_BYTES)
        leftover = self._leftover
        if not leftover:
            return memoryview(scratch)
        scratch[: len(leftover)] = leftover
        return memoryview(scratch)[len(leftover) :]

    def received(self, nbytes: int) -> list[memoryview]:
        """Take note of `nbytes` put into the last buffer; returns the frames that are now complete."""
        if self._assembly is not None:
            return self._grow_assembly(self._assembly, nbytes)
        scratch = self._scratch
        if scratch is None:
            raise RuntimeError("received() without get_buffer()")
        self._scratch = None
        try:
            return self._cut(scratch, len(self._leftover) + nbytes)
        finally:
            if len(_free_scratch) < _MAX_FREE_SCRATCH:
                _free_scratch.append(scratch)

    def forget(self) -> None:
        """Give up what has arrived of a frame that is not complete."""
        self._leftover, self._assembly = b"", None
        self._filled = self._frame_bytes = 0
        self.is_amid_frame = False

    def _cut(self, scratch: bytearray, end: int) -> list[memoryview]:
        """Copy the complete frames out of the scratch block and keep what follows them."""
        frames = []
        start = 0
        frame_end = 0
        while end - start >= _LENGTH_BYTES:
            length: int = _LENGTH.unpack_from(scratch, start)[0]
            if length < 0 or length > self._max_frame_bytes:
                raise self._impossible(length, scratch[start : start + _LENGTH_BYTES])
            frame_end = start + _LENGTH_BYTES + length
            if frame_end > end:
                break
            frames.append(memoryview(scratch[start + _LENGTH_BYTES : frame_end]))
            start = frame_end
        self.is_amid_frame = start < end
        if start == end:
            self._leftover = b""
        elif frame_end - start <= SCRATCH_BYTES:
            self._leftover = bytes(scratch[start:end])
        else:
            self._begin_assembly(scratch[start:end], frame_end - start)
        return frames

    def _impossible(self, length: int, encoded: bytearray) -> MalformedMessage:
        return MalformedMessage(
            f"a frame claims a length of {length} bytes, allowed are 0 to {self._max_frame_bytes}"
            + _likely_protocol(encoded)
        )

    def _begin_assembly(self, arrived: bytearray, frame_bytes: int) -> None:
        self._leftover = b""
        self._assembly = arrived
        self._filled = len(arrived)
        self._frame_bytes = frame_bytes

    def _room_in_assembly(self, assembly: bytearray) -> memoryview:
        """The free end of the assembly, after making it larger if there is none."""
        filled = self._filled
        if filled == len(assembly):
            larger = bytearray(min(self._frame_bytes, max(filled * self._growth, SCRATCH_BYTES)))
            larger[:filled] = assembly
            self._assembly = assembly = larger
        return memoryview(assembly)[filled:]

    def _grow_assembly(self, assembly: bytearray, nbytes: int) -> list[memoryview]:
        self._filled += nbytes
        if self._filled < self._frame_bytes:
            return []
        self._assembly = None
        self.is_amid_frame = False
        return [memoryview(assembly)[_LENGTH_BYTES:]]
