"""Makes messages of every API at every version from Kafka's own descriptions of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from gapless.wire.schema import _attribute, _includes


def versions_of(message: type[Any]) -> range:
    """All versions that the description of a message calls valid."""
    first, _, last = message.json["validVersions"].partition("-")
    return range(int(first), int(last or first) + 1)


def make_message(message: type[Any], version: int, random: Random) -> Any:
    """A message with random content in every field of that version, tagged and null ones among them."""
    return message(version=version, **_fields(message, message.json["fields"], version, random))


def _fields(
    container: type[Any], fields: list[dict[str, Any]], version: int, random: Random
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in fields:
        if not _includes(field["versions"], version):
            continue
        tagged = _includes(field.get("taggedVersions"), version)
        if tagged and random.random() < 0.5:
            continue
        nullable = _includes(field.get("nullableVersions"), version)
        if nullable and not tagged and random.random() < 0.3:
            values[_attribute(field["name"])] = None
            continue
        values[_attribute(field["name"])] = _value(container, field, version, random)
    return values


def _value(container: type[Any], field: dict[str, Any], version: int, random: Random) -> Any:
    kind = field["type"]
    if kind.startswith("[]"):
        item = {**field, "type": kind[2:]}
        long = random.random() < 0.02  # long enough for a length of two bytes
        count = 130 if long else random.choice([0, 1, 1, 2, 3])
        return [_value(container, item, version, random) for _ in range(count)]
    if "fields" in field:
        nested = getattr(container, kind)
        return nested(version=version, **_fields(nested, field["fields"], version, random))
    return _simple_value(kind, random)


def _simple_value(kind: str, random: Random) -> Any:
    bits = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}.get(kind)
    if bits is not None:
        return random.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))
    makers: dict[str, Callable[[], Any]] = {
        "bool": lambda: random.random() < 0.5,
        "uint16": lambda: random.randrange(2**16),
        "float64": random.random,
        "uuid": lambda: UUID(int=random.getrandbits(128) | 1),
        "string": lambda: random.choice(["", "orders", "ä topic €", "x" * 200]),
        "bytes": lambda: random.randbytes(random.choice([0, 1, 20, 300])),
        "records": lambda: random.randbytes(random.choice([0, 1, 20, 300])),
        "bitfield": lambda: {random.randrange(30) for _ in range(3)},
    }
    return makers[kind]()
