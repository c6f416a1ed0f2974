"""Frames come out whole and in order however the stream was cut, and a length alone costs nothing."""

from __future__ import annotations

import asyncio
import socket
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.wire.errors import MalformedMessage
from gapless.wire.frames import SCRATCH_BYTES, FrameReader

MAX_FRAME_BYTES = 4 * 1024 * 1024


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def feed(reader: FrameReader, stream: bytes, chunk_bytes: int = 1 << 30) -> list[memoryview]:
    """Put the stream into the reader's buffers as a socket would, at most `chunk_bytes` at a time."""
    frames = []
    position = 0
    while position < len(stream):
        buffer = reader.get_buffer(-1)
        count = min(len(buffer), chunk_bytes, len(stream) - position)
        assert count > 0
        buffer[:count] = stream[position : position + count]
        position += count
        frames += reader.received(count)
    return frames


contents = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda seed, size: bytes([seed]) * size,
            st.integers(0, 255),
            st.sampled_from([1, 5000, SCRATCH_BYTES - 5, SCRATCH_BYTES - 4, SCRATCH_BYTES, 300_000]),
        ),
    ),
    max_size=6,
)


@given(contents, st.lists(st.integers(1, 100_000), min_size=1, max_size=20))
def test_any_chunking_gives_the_same_frames(parts: list[bytes], chunk_sizes: list[int]) -> None:
    stream = b"".join(map(framed, parts))
    reader = FrameReader(MAX_FRAME_BYTES)
    frames: list[memoryview] = []
    position = turn = 0
    while position < len(stream):
        chunk_bytes = (
            chunk_sizes[turn % len(chunk_sizes)] << turn // 50
        )  # a million single bytes take too long
        frames += feed(reader, stream[position : position + chunk_bytes])
        position += chunk_bytes
        turn += 1
    assert [bytes(frame) for frame in frames] == parts
    assert reader.buffered_bytes == 0


@given(st.binary(max_size=300), st.integers(1, 50))
def test_arbitrary_bytes_give_frames_or_a_malformed_message(stream: bytes, chunk_bytes: int) -> None:
    reader = FrameReader(max_frame_bytes=100)
    try:
        frames = feed(reader, stream, chunk_bytes)
    except MalformedMessage:
        return
    assert sum(len(frame) + 4 for frame in frames) + reader.buffered_bytes == len(stream)


@pytest.mark.parametrize("chunk_bytes", [1, 3, 7, 1 << 30])
def test_a_stream_arriving_byte_by_byte_is_cut_like_one_arriving_at_once(chunk_bytes: int) -> None:
    parts = [b"", b"a", b"bc" * 100, b""]
    frames = feed(FrameReader(1000), b"".join(map(framed, parts)), chunk_bytes)
    assert [bytes(frame) for frame in frames] == parts


@pytest.mark.parametrize("length", [-1, -(2**31), MAX_FRAME_BYTES + 1, 2**31 - 1])
def test_an_absurd_length_is_refused_by_name_as_soon_as_it_is_there(length: int) -> None:
    with pytest.raises(MalformedMessage, match=str(length)):
        feed(FrameReader(MAX_FRAME_BYTES), struct.pack(">i", length))


def test_a_frame_of_exactly_the_allowed_length_is_accepted() -> None:
    assert len(feed(FrameReader(1000), framed(bytes(1000)))[0]) == 1000


def test_frames_are_writable_and_never_touched_again() -> None:
    reader = FrameReader(MAX_FRAME_BYTES)
    small, large = feed(reader, framed(b"small") + framed(b"L" * 200_000))
    small[:1] = b"S"
    large[:1] = b"l"
    feed(reader, framed(b"x" * 200_000) + framed(b"y" * 10))
    assert bytes(small) == b"Small"
    assert bytes(large) == b"l" + b"L" * 199_999


def test_frames_of_one_read_do_not_share_memory() -> None:
    one, two = feed(FrameReader(1000), framed(b"one") + framed(b"two"))
    assert one.obj is not two.obj


def test_a_promise_of_many_bytes_allocates_only_for_those_that_came() -> None:
    reader = FrameReader(max_frame_bytes=1 << 30)
    tracemalloc.start()
    try:
        feed(reader, struct.pack(">i", 1 << 30) + bytes(1000))
        reader.get_buffer(-1)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.buffered_bytes == 1004
    assert held_bytes < 3 * SCRATCH_BYTES


@given(st.integers(1, 2_000_000))
def test_the_buffer_of_an_unfinished_frame_is_at_most_four_times_what_arrived(arrived_bytes: int) -> None:
    reader = FrameReader(max_frame_bytes=1 << 30)
    stream = struct.pack(">i", 1 << 30) + bytes(arrived_bytes)
    feed(reader, stream)
    assert reader.buffered_bytes == len(stream)
    room = len(reader.get_buffer(-1))
    assert room + len(stream) <= max(SCRATCH_BYTES, 4 * len(stream))


def test_a_client_that_sends_a_byte_a_time_holds_no_more_than_it_sent() -> None:
    readers = [FrameReader(1000) for _ in range(1000)]
    for reader in readers:
        feed(reader, b"\x00")
    tracemalloc.start()
    try:
        for reader in readers:
            feed(reader, b"\x00\x00\x10", chunk_bytes=1)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1000 * 100 + SCRATCH_BYTES


@pytest.mark.parametrize("arrived_bytes", [10, 300_000])
def test_a_frame_that_is_given_up_holds_nothing(arrived_bytes: int) -> None:
    reader = FrameReader(MAX_FRAME_BYTES)
    assert feed(reader, framed(bytes(500_000))[:arrived_bytes]) == []
    assert reader.held_bytes
    reader.forget()
    assert (reader.held_bytes, reader.buffered_bytes, reader.is_amid_frame) == (0, 0, False)


def test_bytes_that_were_never_asked_for_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(RuntimeError, match="get_buffer"):
        FrameReader(1000).received(1)


class _Receiver(asyncio.BufferedProtocol):
    """The reader where it is used: under an event loop."""

    def __init__(self, expected: int) -> None:
        self.reader = FrameReader(MAX_FRAME_BYTES)
        self.frames: list[memoryview] = []
        self.expected = expected
        self.done = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.frames += self.reader.received(nbytes)
        if len(self.frames) == self.expected:
            self.done.set_result(None)


@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_frames_arrive_through_a_real_socket_under_either_event_loop(loop_name: str) -> None:
    parts = [bytes([index]) * size for index, size in enumerate([10, 70_000, 3, 1_500_000, 0, 65_532, 2])]

    async def run() -> list[bytes]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, receiver = await loop.create_connection(lambda: _Receiver(len(parts)), sock=ours)
        await loop.sock_sendall(theirs, b"".join(map(framed, parts)))
        await receiver.done
        transport.close()
        theirs.close()
        return [bytes(frame) for frame in receiver.frames]

    if loop_name == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        assert uvloop.run(run()) == parts
    else:
        assert asyncio.run(run()) == parts
