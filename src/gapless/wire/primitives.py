"""The small pieces of which Kafka's messages are made, for the codecs that are written by hand.

Decoders take a buffer and a position and return the value with the position after it. They raise
`MalformedMessage` for what is wrong, and may raise `IndexError` or `struct.error` where the buffer ends too
early: a codec turns those into `MalformedMessage` once, around the whole message.
"""

from __future__ import annotations

import struct
from struct import Struct
from uuid import UUID

from gapless.wire.errors import MalformedMessage

Buffer = bytes | bytearray | memoryview

TRUNCATED = (IndexError, struct.error)
"""What reading past the end of a buffer raises."""

INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")
TWO_INT32 = Struct(">ii")
INT32_INT64 = Struct(">iq")
TWO_INT64 = Struct(">qq")

MAX_ITEMS = 30_000
"""How many items all arrays of a request may have together: each costs the broker far more than its bytes."""

_MAX_UVARINT_BYTES = 5
ZERO_UUID = UUID(int=0)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned 32-bit integer of one to five bytes."""
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    shift = 7
    for index in range(position + 1, position + _MAX_UVARINT_BYTES):
        byte = buffer[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, index + 1
        shift += 7
    raise MalformedMessage("a variable-length integer exceeds 32 bits")


def read_text(buffer: Buffer, start: int, length: int) -> tuple[str, int]:
    """UTF-8 text whose length is known."""
    end = start + length
    if end > len(buffer):
        raise MalformedMessage(f"a string of {length} bytes exceeds the message")
    try:
        return str(buffer[start:end], "utf-8"), end
    except UnicodeDecodeError:
        raise MalformedMessage("a string is not UTF-8") from None


def read_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    """A string with a 16-bit length; -1 stands for null."""
    length: int = INT16.unpack_from(buffer, position)[0]
    if length < 0:
        if length == -1:
            return None, position + 2
        raise MalformedMessage(f"a string has the length {length}")
    return read_text(buffer, position + 2, length)


def read_compact_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    """A string with its length plus one as a variable-length integer; 0 stands for null."""
    length = buffer[position]
    if length == 0:
        return None, position + 1
    if length < 0x80:
        return read_text(buffer, position + 1, length - 1)
    length, position = read_uvarint(buffer, position)
    return read_text(buffer, position, length - 1) if length else (None, position)


def read_uuid(buffer: Buffer, position: int) -> tuple[UUID, int]:
    end = position + 16
    if end > len(buffer):
        raise MalformedMessage("a topic id exceeds the message")
    return UUID(bytes=bytes(buffer[position:end])), end


def read_array_length(buffer: Buffer, position: int, smallest_item_bytes: int) -> tuple[int, int]:
    """A 32-bit array length (null is refused), checked against what can still follow."""
    length: int = INT32.unpack_from(buffer, position)[0]
    position += 4
    if length < 0 or length * smallest_item_bytes > len(buffer) - position:
        raise _impossible_array(length)
    return length, position


def read_compact_array_length(buffer: Buffer, position: int, smallest_item_bytes: int) -> tuple[int, int]:
    """A variable-length array length (null is refused), checked against what can still follow."""
    length, position = read_uvarint(buffer, position)
    length -= 1
    if length < 0 or length * smallest_item_bytes > len(buffer) - position:
        raise _impossible_array(length)
    return length, position


def _impossible_array(length: int) -> MalformedMessage:
    if length < 0:
        return MalformedMessage(f"an array has the length {length}")
    return MalformedMessage(f"an array of {length} items exceeds the message")


def take_items(left: int, count: int) -> int:
    """What is left of a message's `MAX_ITEMS` after an array of `count`."""
    if count > left:
        raise MalformedMessage(f"a request has more than {MAX_ITEMS} items")
    return left - count


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """Step over a section of tagged fields none of which is of interest."""
    count, position = read_uvarint(buffer, position)
    for _ in range(count):
        _tag, _start, position = read_tagged_field(buffer, position)
    return position


def read_tagged_field(buffer: Buffer, position: int) -> tuple[int, int, int]:
    """One tagged field: its tag, where its content starts and where it ends."""
    tag, position = read_uvarint(buffer, position)
    size, position = read_uvarint(buffer, position)
    end = position + size
    if end > len(buffer):
        raise MalformedMessage(f"tagged field {tag} of {size} bytes exceeds the message")
    return tag, position, end


def uvarint(value: int) -> bytes:
    """The inverse of `read_uvarint`."""
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return INT16.pack(len(encoded)) + encoded


def compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
