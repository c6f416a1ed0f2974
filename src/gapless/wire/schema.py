"""Decodes any request from Kafka's own description of it, trusting nothing in the bytes.

kafka-python can decode, too, but not a hostile peer's bytes: its integers of variable length have no end, one
tagged field makes it copy the rest of the message, lengths beyond the end are cut silently, and null turns up
where no null may be. So the descriptions it ships are compiled here into readers that check every length
before they follow it, in time and memory linear in the size of the message. The values go into its classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from gapless.wire.errors import MalformedMessage
from gapless.wire.messages import ApiMessage
from gapless.wire.primitives import (
    INT32,
    MAX_ITEMS,
    TRUNCATED,
    ZERO_UUID,
    read_array_length,
    read_compact_array_length,
    read_compact_string,
    read_string,
    read_tagged_field,
    read_uuid,
    read_uvarint,
    skip_tagged_fields,
    take_items,
)

Reader = Callable[[memoryview, int], tuple[Any, int]]
Description = dict[str, Any]


class _Compiled(NamedTuple):
    """A reader, and the fewest bytes that what it reads can have."""

    read: Reader
    smallest_bytes: int


class _Allowance:
    """How many items the arrays of the message that is being read may still have."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = MAX_ITEMS


class _Version(NamedTuple):
    number: int
    flexible: bool
    allowance: _Allowance


def compile_reader(message: type[Any], description: Description, version: int) -> Reader:
    """A function from (frame, position) to (message, position after it); it raises `MalformedMessage`."""
    if not _includes(description["validVersions"], version):
        raise MalformedMessage(f"{description['name']} has no version {version}")
    flexible = _includes(description["flexibleVersions"], version)
    allowance = _Allowance()
    read_message = _struct_reader(message, description["fields"], _Version(version, flexible, allowance)).read

    def read(frame: memoryview, position: int) -> tuple[Any, int]:
        allowance.items = MAX_ITEMS
        try:
            return read_message(frame, position)
        except TRUNCATED:
            raise MalformedMessage(f"{description['name']} ends too early") from None

    return read


def _includes(versions: str | None, version: int) -> bool:
    """Whether a range such as "3", "3-5", "3+" or "none" contains the version."""
    if not versions or versions == "none":
        return False
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    first, _, last = versions.partition("-")
    return int(first) <= version <= int(last or first)


def _attribute(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _struct_reader(container: type[Any], fields: list[Description], version: _Version) -> _Compiled:
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    smallest_bytes = 1 if version.flexible else 0
    for description in fields:
        if not _includes(description["versions"], version.number):
            continue
        attribute = _attribute(description["name"])
        compiled = _field_reader(container, description, version)
        if _includes(description.get("taggedVersions"), version.number):
            tagged[description["tag"]] = (attribute, compiled.read)
        else:
            plain.append((attribute, compiled.read))
            smallest_bytes += compiled.smallest_bytes
    new = _maker(container, version.number)

    def read_classic(frame: memoryview, position: int) -> tuple[Any, int]:
        message = new()
        for attribute, read in plain:
            value, position = read(frame, position)
            setattr(message, attribute, value)
        return message, position

    def read_flexible(frame: memoryview, position: int) -> tuple[Any, int]:
        message, position = read_classic(frame, position)
        if frame[position] == 0:
            return message, position + 1
        if tagged:
            return message, _read_tagged(frame, position, tagged, message)
        return message, skip_tagged_fields(frame, position)

    return _Compiled(read_flexible if version.flexible else read_classic, smallest_bytes)


def _maker(container: type[Any], version: int) -> Callable[[], Any]:
    """Makes containers as kafka-python's decoder does; its constructor takes five times as long.

    A field that is not set reads as its default.
    """
    is_message = issubclass(container, ApiMessage)

    def new() -> Any:
        message = object.__new__(container)
        message._version = version
        message.tags = None
        message.unknown_tags = None
        if is_message:
            message._header = None
            message._min_version = None
            message._max_version = None
        return message

    return new


def _read_tagged(frame: memoryview, position: int, known: dict[int, tuple[str, Reader]], message: Any) -> int:
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        tag, start, end = read_tagged_field(frame, position)
        position = end
        if tag in known:
            attribute, read = known[tag]
            value, read_to = read(frame[:end], start)
            if read_to != end:
                raise MalformedMessage(f"tagged field {attribute} has another size than it says")
            setattr(message, attribute, value)
            message.tags = (message.tags or set()) | {attribute}
    return position


def _field_reader(container: type[Any], description: Description, version: _Version) -> _Compiled:
    kind: str = description["type"]
    nullable = _includes(description.get("nullableVersions"), version.number)
    name: str = description["name"]
    if kind.startswith("[]"):
        item = _item_reader(container, kind[2:], description, version)
        return _array_reader(name, item, nullable, version)
    if "fields" in description:
        struct = _struct_reader(getattr(container, kind), description["fields"], version)
        return _nullable_struct_reader(struct) if nullable else struct
    return _simple_reader(name, kind, nullable, version.flexible)


def _item_reader(container: type[Any], kind: str, description: Description, version: _Version) -> _Compiled:
    if "fields" in description:
        return _struct_reader(getattr(container, kind), description["fields"], version)
    return _simple_reader(description["name"], kind, False, version.flexible)


def _array_reader(name: str, item: _Compiled, nullable: bool, version: _Version) -> _Compiled:
    read_item = item.read
    flexible, allowance = version.flexible, version.allowance
    smallest_item_bytes = max(1, item.smallest_bytes)
    read_length = read_compact_array_length if flexible else read_array_length

    def is_null(frame: memoryview, position: int) -> bool:
        return frame[position] == 0 if flexible else INT32.unpack_from(frame, position)[0] == -1

    def read(frame: memoryview, position: int) -> tuple[Any, int]:
        if is_null(frame, position):
            _check_null(name, nullable)
            return None, position + (1 if flexible else 4)
        length, position = read_length(frame, position, smallest_item_bytes)
        allowance.items = take_items(allowance.items, length)
        items = []
        for _ in range(length):
            value, position = read_item(frame, position)
            items.append(value)
        return items, position

    return _Compiled(read, 1 if flexible else 4)


def _nullable_struct_reader(struct: _Compiled) -> _Compiled:
    def read(frame: memoryview, position: int) -> tuple[Any, int]:
        if frame[position] >= 0x80:  # a negative byte
            return None, position + 1
        return struct.read(frame, position + 1)

    return _Compiled(read, 1)


_FIXED = {
    "bool": Struct(">?"),
    "int8": Struct(">b"),
    "int16": Struct(">h"),
    "uint16": Struct(">H"),
    "int32": Struct(">i"),
    "int64": Struct(">q"),
    "float64": Struct(">d"),
}


def _simple_reader(name: str, kind: str, nullable: bool, flexible: bool) -> _Compiled:
    if kind in _FIXED:
        layout = _FIXED[kind]
        return _Compiled(lambda frame, at: (layout.unpack_from(frame, at)[0], at + layout.size), layout.size)
    if kind == "uuid":
        return _Compiled(_read_topic_id, 16)
    read_value = {
        ("string", False): read_string,
        ("string", True): read_compact_string,
        ("bytes", False): _read_bytes,
        ("bytes", True): _read_compact_bytes,
        ("records", False): _read_bytes,
        ("records", True): _read_compact_bytes,
    }[kind, flexible]

    def read(frame: memoryview, position: int) -> tuple[Any, int]:
        value, position = read_value(frame, position)
        if value is None:
            _check_null(name, nullable)
        return value, position

    return _Compiled(read, 1 if flexible else 2 if kind == "string" else 4)


def _check_null(name: str, nullable: bool) -> None:
    if not nullable:
        raise MalformedMessage(f"{name} must not be null")


def _read_topic_id(frame: memoryview, position: int) -> tuple[UUID | None, int]:
    """A topic id; the zero id means none, and kafka-python's classes say None for it."""
    value, position = read_uuid(frame, position)
    return (None if value == ZERO_UUID else value), position


def _read_bytes(frame: memoryview, position: int) -> tuple[bytes | None, int]:
    length: int = INT32.unpack_from(frame, position)[0]
    return _sized_bytes(frame, position + 4, length)


def _read_compact_bytes(frame: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = read_uvarint(frame, position)
    return _sized_bytes(frame, position, length - 1)


def _sized_bytes(frame: memoryview, start: int, length: int) -> tuple[bytes | None, int]:
    if length == -1:
        return None, start
    end = start + length
    if length < 0 or end > len(frame):
        raise MalformedMessage(f"a field of {length} bytes exceeds the message")
    return bytes(frame[start:end]), end
