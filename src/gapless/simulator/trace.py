"""A run in full: every event and every effect of every broker, line by line.

The same case gives the same lines, in any process. So nothing here may print an address of memory or go
through a set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from uuid import UUID
from zlib import crc32

from gapless.core.contract import Call, Effect, PeerAnswered, Reply, Request
from gapless.simulator.case import Step
from gapless.simulator.scene import Scene
from gapless.simulator.watching import Watcher
from gapless.simulator.world import World
from gapless.wire.apis import ApiKey


class Tracer(Watcher):
    """Hands each line to `write`."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._world: World
        self._began_ms = 0

    def enter(self, world: World) -> None:
        self._world = world
        self._began_ms = world.now_ms
        world.on_event = self._happened

    def begin(self, scene: Scene) -> None:
        scene.history.say = self._said

    def before(self, step: Step) -> None:
        arguments = " ".join(map(in_short, step.arguments))
        self._line("step", f"{step.what} {arguments}")

    def _said(self, who: str, text: str) -> None:
        self._line(who, text)

    def _happened(self, node_id: int, what: Any) -> None:
        arrow = ">" if isinstance(what, Effect) else "<"
        self._line(f"broker {node_id}", f"{arrow} {told(what)}")

    def _line(self, who: str, text: str) -> None:
        self._write(f"{(self._world.now_ms - self._began_ms) / 1000:9.3f}  {who:<10} {text}")


def told(what: Any) -> str:
    """An event or an effect in one line."""
    match what:
        case Request(connection, header, body):
            return f"Request on {connection}: {_api(header.api_key)} v{header.api_version} {in_short(body)}"
        case Reply(request, message):
            api = _api(request.header.api_key)
            return f"Reply on {request.connection}: {api} {in_short(message)}"
        case Call():
            return f"Call of {what.node_id}: {_api(what.api_key)} v{what.api_version} {in_short(what.body)}"
        case PeerAnswered(call, message):
            return f"PeerAnswered by {call.node_id}: {_api(call.api_key)} {in_short(message)}"
        case _:
            return in_short(what)


def _api(key: int) -> str:
    return ApiKey(key).name


def in_short(value: Any) -> str:
    """Any value of the protocol or the core, the same in every process."""
    match value:
        case Enum():
            return value.name
        case UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes {crc32(value):08x}>"
        case dict():
            return "{" + ", ".join(f"{key}={in_short(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(in_short, value)) + "]"
        case set() | frozenset():
            return in_short(sorted(value))
    if is_dataclass(value):
        given = ((each, getattr(value, each.name)) for each in fields(value))
        shown = (f"{each.name}={in_short(what)}" for each, what in given if what != each.default)
        return f"{type(value).__name__}({', '.join(shown)})"
    if hasattr(type(value), "to_dict"):
        return in_short(value.to_dict())
    if hasattr(type(value), "read"):
        return in_short(value.read(0, value.size))
    return repr(value)
