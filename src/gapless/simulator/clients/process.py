"""Straight-line programs in virtual time: a generator that yields what it waits for.

def life(self) -> Process:
    answer = yield self.ask(...)   # a Promise: goes on with its value
    yield 100                      # milliseconds to sleep
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from gapless.simulator.world import World


class Promise:
    """Something that will be known; one process may wait for it."""

    __slots__ = ("_waiting", "done", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self._waiting: Callable[[Any], None] | None = None

    def keep(self, value: Any = None) -> None:
        """Now it is known. Later words do not count."""
        if self.done:
            return
        self.done, self.value = True, value
        if self._waiting is not None:
            self._waiting(value)

    def then(self, go_on: Callable[[Any], None]) -> None:
        """Go on when it is known."""
        if self.done:
            go_on(self.value)
        else:
            self._waiting = go_on


Process = Generator[Promise | int, Any, None]
Part = Generator[Promise | int, Any, Any]
"""A part of a process that has a result: `result = yield from part()`."""


class Running:
    """A process that goes on until it ends or is stopped."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self.ended = Promise()
        self._is_running = False
        self.is_killed = False
        """It does nothing more, whatever it waits for."""
        self.stalled_until_ms = 0
        """It stands still until then, as if its machine did; what it waits for comes all the same."""
        world.after(0, lambda: self._go_on(None))

    def stop(self) -> None:
        """It never goes on; not even if it is the one that lets itself be stopped, by what it does now."""
        if not self.ended.done:
            if not self._is_running:
                self._process.close()
            self.ended.keep()

    def _go_on(self, value: Any) -> None:
        if self.ended.done or self.is_killed:
            return
        if self._world.now_ms < self.stalled_until_ms:
            self._world.agenda.at(self.stalled_until_ms, lambda: self._go_on(value))
            return
        self._is_running = True
        try:
            awaited = self._process.send(value)
        except StopIteration:
            self.ended.keep()
            return
        finally:
            self._is_running = False
        self._wait_for(awaited)

    def _wait_for(self, awaited: Promise | int) -> None:
        if self.ended.done:
            self._process.close()
        elif isinstance(awaited, int):
            self._world.after(awaited, lambda: self._go_on(None))
        elif awaited.done:
            self._world.after(0, lambda: self._go_on(awaited.value))
        else:
            awaited.then(self._go_on)
