"""The moments around a broker's death, in which clients must not be told what is about to be wrong.

A client that loses its connection asks at once who leads now, and believes the answer for a second or more.
The others lose their connections to the dead broker at the same moment, but need some milliseconds to be
sure and to elect. So while a broker is under suspicion such questions wait. And a broker that was fenced is
listed for a little longer: librdkafka gives up a broker that is no longer listed, and with it, until its
next look, the partitions that it still has there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gapless.core.contract import Request, TopicPartition

if TYPE_CHECKING:
    from gapless.core.node import Node
    from gapless.core.records import BrokerRegistered

SUSPECT_MS = 250
FAREWELL_MS = 5000
BROKERS = TopicPartition("", -1)
"""What requests watch that wait for news of brokers."""


class Departures:
    """Who may be dying, and who has just been fenced."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._suspected: dict[int, int] = {}
        self._fenced: dict[int, int] = {}

    def suspect(self, node_id: int) -> None:
        """The connection to a broker broke."""
        if self._node.image.is_live(node_id):
            self._suspected[node_id] = self._node.now_ms + SUSPECT_MS

    def replayed(self, broker: BrokerRegistered) -> None:
        """A broker was registered or fenced."""
        self._suspected.pop(broker.node_id, None)
        if broker.fenced:
            self._fenced[broker.node_id] = self._node.now_ms
        else:
            self._fenced.pop(broker.node_id, None)
        self._node.mark_touched(BROKERS)

    def listed(self) -> list[BrokerRegistered]:
        """The brokers that clients hear of: the live ones, and those that were live a moment ago."""
        since_ms = self._node.now_ms - FAREWELL_MS
        image = self._node.image
        return [
            broker
            for node_id, broker in sorted(image.brokers.items())
            if not broker.fenced or self._fenced.get(node_id, since_ms) > since_ms
        ]

    def answer_when_settled(self, request: Request, answer: Callable[[], Any]) -> Any | None:
        """The answer, or None if it follows when it is known whether somebody has died."""
        until_ms = max(self._suspected.values(), default=0)
        if until_ms <= self._node.now_ms:
            return answer()

        def poll(timed_out: bool) -> Any | None:
            if timed_out:
                self._suspected.clear()
            return None if self._suspected else answer()

        self._node.waiting.add(request, until_ms, (BROKERS,), poll)
        return None
