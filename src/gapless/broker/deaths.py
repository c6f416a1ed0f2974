"""Who is suspected is looked at closely: a broker whose connection breaks may have died this very moment.

A process that ends closes its sockets and gives up its session within milliseconds, in any order. So the
session is asked for at once and at growing intervals; every live broker's now and then, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gapless.broker.coordination.port import Coordination
from gapless.core.contract import BrokerDied
from gapless.core.image import Image

LOOK_AFTER_MS = (0, 2, 5, 10, 20, 50, 100, 200)


class DeathWatch:
    """Turns ended sessions into `BrokerDied`, as long as the journal takes their broker for alive."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coordination: Coordination,
        own_id: int,
        image: Callable[[], Image],
        report: Callable[[BrokerDied], None],
    ) -> None:
        self._loop = loop
        self._coordination = coordination
        self._own_id = own_id
        self._image = image
        self._report = report
        self._looks: dict[int, asyncio.TimerHandle] = {}
        self._closed = False

    def suspect(self, node_id: int) -> None:
        """Its connection broke, or nobody listens where it was."""
        if node_id not in self._looks and not self._closed:
            self._look(node_id, 0)

    def look_at_all(self) -> None:
        """Whoever has died unnoticed is noticed now."""
        if self._closed:
            return
        for broker in self._image().live_brokers():
            if broker.node_id != self._own_id and self._coordination.is_dead(broker.node_id):
                self._report(BrokerDied(broker.node_id, broker.epoch))

    def _look(self, node_id: int, turn: int) -> None:
        self._looks.pop(node_id, None)
        broker = self._image().brokers.get(node_id)
        if self._closed or broker is None or broker.fenced:
            return
        # The epoch comes from before the look: the life that has it is over if nobody has the session.
        if self._coordination.is_dead(node_id):
            self._report(BrokerDied(node_id, broker.epoch))
        elif turn + 1 < len(LOOK_AFTER_MS):
            delay_s = (LOOK_AFTER_MS[turn + 1] - LOOK_AFTER_MS[turn]) / 1000
            self._looks[node_id] = self._loop.call_later(delay_s, self._look, node_id, turn + 1)

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        for look in self._looks.values():
            look.cancel()
