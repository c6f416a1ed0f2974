"""What a consumer asks of a store: apply records once, and remember how far.

A store owns the question *was this already done?* The consumer hands it the records of one partition in their
order, with the handler; the store runs the handler for those that are new, and remembers them. How much of
that is one atomic step is the store's promise:

- A *transactional* store (SQLite, PostgreSQL) runs handlers, marks and offset in one transaction of the
  database that the handler writes to: an effect happens once, whatever dies.
- A *marking* store (Redis) sets a mark before and after each handler. What it cannot know, it says.
- `NoStore` remembers nothing: the group's offsets alone tell what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from gapless.client.records import Record, TopicPartition
from gapless.errors import GaplessError

Handler = Callable[[Record, Any], None]
"""Does what is to be done with a record; the second argument is the store's open transaction, or None."""
BeforeCommit = Callable[[], None]


class Applied(NamedTuple):
    """What became of some records: those handled, and those that had been handled before."""

    handled: int
    repeated: int


class HandlerFailed(Exception):
    """The handler raised. Records before `record` in the call are applied if `applied` counts them."""

    def __init__(self, record: Record, cause: Exception, applied: Applied = Applied(0, 0)) -> None:  # noqa: B008
        super().__init__(f"{record.topic}-{record.partition} offset {record.offset}: {cause!r}")
        self.record = record
        self.cause = cause
        self.applied = applied


class PartitionTaken(GaplessError):
    """Another consumer took the partition after us: nothing was changed, and nothing may be.

    Whoever took it last has it. A consumer to whom the group still gives the partition takes it again.
    """


class StoreUnavailable(GaplessError):
    """The store does not answer, or refuses. The same records are to be applied again.

    Nothing was changed; or the answer to a commit was lost, and the next call finds out what became of it.
    """


class Store(Protocol):
    """Thread-safe across partitions: one partition is worked on by one thread at a time."""

    @property
    def keeps_offsets(self) -> bool:
        """Whether `take` knows where to begin; if not, the group's committed offsets do."""
        ...

    def open(self, group: str) -> None:
        """Connect, and make what is missing. Raises StoreUnavailable or UsageError with what to do.

        Consumers of one group may share a store, each opening and closing it; another group is refused.
        """
        ...

    def take(self, partition: TopicPartition) -> int | None:
        """The partition is ours from now on: the offset to go on from; None if the store has none for it."""
        ...

    def apply(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        handler: Handler,
        before_commit: BeforeCommit | None = None,
    ) -> Applied:
        """Handle those of the records that are new; they are of one partition, and in order.

        A store that then has to wait for a disk calls `before_commit` first: somebody may use the time.

        After HandlerFailed from a transactional store nothing of the call was done (`applied` is zero); a
        marking store has done what `applied` counts.
        """
        ...

    def skip(self, partition: TopicPartition, record: Record) -> None:
        """Remember a record as done without handling it: it went to a dead-letter topic, or is given up."""
        ...

    def release(self, partition: TopicPartition) -> None:
        """The partition is no longer ours; forget what is cached."""
        ...

    def close(self) -> None:
        """What `open` began ends, with the last who has it open."""
        ...
