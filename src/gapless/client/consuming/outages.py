"""A store that does not answer for a while: how long to bear with it, and what is said about it.

Databases are restarted, and disks fill up and are cleared. That is no reason to give up a membership: what a
partition wants of its store is asked for again, until the store answers or the user's patience is over.
"""

from __future__ import annotations

import logging
import time

from gapless.client.records import TopicPartition
from gapless.client.stores.port import StoreUnavailable

_log = logging.getLogger(__name__)
PAUSE_S = 0.2
"""Between two questions to a store that does not answer."""


class Outage:
    """What one partition has seen of it; nothing, most of the time."""

    __slots__ = ("_partition", "_since")

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._since: float | None = None

    def refused(self, error: StoreUnavailable, timeout_s: float) -> None:
        """The store was asked in vain. Raises the error if that has been so for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            _log.warning("%s waits for its store: %s", self._partition, error)
        if now - self._since >= timeout_s:
            raise error

    def over(self) -> None:
        """The store has answered."""
        if self._since is not None:
            _log.warning(
                "%s goes on after %.1f s without its store", self._partition, time.monotonic() - self._since
            )
            self._since = None
