"""What a broker itself waits for: a high watermark to pass what it wrote, before it does the next thing.

Clients' requests wait in `waiting`; this is for steps that no client waits for, or that others depend on. A
watch is looked at when its partition was touched. Those of one partition are served in the order in which
they were set: each waits for all that was written before it was set, so a later one is never ready first.
"""

from __future__ import annotations

from collections.abc import Callable

from gapless.core.contract import TopicPartition

Look = Callable[[], bool]
"""Does what was waited for, if it has come; returns whether it has."""


class Watches:
    """All watches of a node."""

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, list[Look]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, partition: TopicPartition, look: Look) -> None:
        """Look now, and if it has not come yet, whenever the partition is touched.

        Nobody is served before those that came earlier, even if what they wait for came in this very step.
        """
        queue = self._queues.get(partition)
        if queue is not None:
            queue.append(look)
        elif not look():
            self._queues.setdefault(partition, []).append(look)

    def touched(self, partition: TopicPartition) -> None:
        """Something has changed in a partition."""
        queue = self._queues.get(partition)
        if queue is None:
            return
        left = [look for look in queue if not look()]  # those that are added meanwhile are looked at, too
        if left:
            queue[:] = left
        else:
            del self._queues[partition]
