"""The store that remembers nothing: what is done, the group's committed offsets alone tell."""

from __future__ import annotations

from collections.abc import Sequence

from gapless.client.records import Record, TopicPartition
from gapless.client.stores.port import Applied, BeforeCommit, Handler, HandlerFailed


class NoStore:
    """Calls the handler for every record that comes, also for one that came before."""

    keeps_offsets = False

    def open(self, group: str) -> None:
        """There is nothing to open."""

    def take(self, partition: TopicPartition) -> int | None:
        return None

    def apply(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        handler: Handler,
        before_commit: BeforeCommit | None = None,
    ) -> Applied:
        handled = 0
        for record in records:
            try:
                handler(record, None)
            except Exception as error:
                raise HandlerFailed(record, error, Applied(handled, 0)) from error
            handled += 1
        return Applied(handled, 0)

    def skip(self, partition: TopicPartition, record: Record) -> None:
        """There is nobody to tell."""

    def release(self, partition: TopicPartition) -> None:
        """There is nothing to forget."""

    def close(self) -> None:
        """There is nothing to close."""
