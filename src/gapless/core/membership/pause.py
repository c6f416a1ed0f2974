"""A broker that was paused or cut off must look before it serves: others may lead in its place by now.

As long as somebody has heard it who knows no more than it, or it has read the journal to its end, within
somewhat less than a session's time, it cannot have been replaced without knowing. After that it asks for
the journal (`CatchUp`) and holds back all that happens until it has caught up. A broker that is alone has
nobody to be replaced by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core.contract import (
    CaughtUp,
    Committed,
    ConnectionClosed,
    Event,
    Refused,
    Request,
    Started,
    StopAsked,
    Tick,
)

if TYPE_CHECKING:
    from gapless.core.membership.contact import Contact
    from gapless.core.node import Node

MAX_HELD_REQUESTS = 10_000
_PASS = (Committed, Refused, CaughtUp, Started, StopAsked)


class Pause:
    """Notices that time has passed unseen, and holds events back until the journal was read."""

    def __init__(self, node: Node, contact: Contact) -> None:
        self._node = node
        self._contact = contact
        self._has_others = False
        self._ran_ms = 0
        # The others count from the last question that was answered, which may be two intervals before the
        # last thing that happened here.
        self._sure_for_ms = max(contact.timeout_ms // 2, contact.timeout_ms - 2 * contact.interval_ms)
        self._held: list[Event] = []
        self.holding = False

    def watch(self, *, has_others: bool) -> None:
        """Whether there is anybody who could take this broker for hung."""
        if has_others and not self._has_others:
            self._ran_ms = self._contact.proof_ms = self._node.now_ms
        self._has_others = has_others

    def admits(self, event: Event) -> bool:
        """Whether an event may take its course; if not, it is held."""
        if not self._has_others:
            return True
        now_ms = self._node.now_ms
        ran_ms, self._ran_ms = self._ran_ms, now_ms
        if now_ms - ran_ms > 2 * self._contact.interval_ms:
            self._contact.slept(now_ms - ran_ms)
        if not self.holding:
            surely_ms = now_ms - self._sure_for_ms
            if ran_ms >= surely_ms and self._contact.proof_ms >= surely_ms:
                return True
            self.holding = True
            self._node.catch_up()
        if isinstance(event, _PASS):
            return True
        self._hold(event)
        return False

    def _hold(self, event: Event) -> None:
        match event:
            case Tick():
                return  # what is due is done on going on
            case ConnectionClosed(connection):
                self._drop(connection)
            case Request() if len(self._held) >= MAX_HELD_REQUESTS:
                self._node.close(event.connection, "too many requests while this broker caught up")
                return
        self._held.append(event)

    def _drop(self, connection: int) -> None:
        self._held = [
            event
            for event in self._held
            if not (isinstance(event, Request) and event.connection == connection)
        ]

    def resume(self) -> list[Event]:
        """The journal was read: what happened meanwhile, in order."""
        self.holding = False
        self._contact.proof_ms = self._node.now_ms
        held, self._held = self._held, []
        return held
