"""The coordination port: a shared journal with compare-and-set, and sessions that end with their process.

An implementation promises:

- `append` writes records if the journal is still at the expected version, for all brokers alike: of two who
  expect the same version one gets `JournalMoved`. What was appended survives a power cut.
- `read` gives every record after a version, in order, and all that was appended before the call began.
- A session belongs to one process. It ends with the process: on one machine at the latest shortly after its
  sockets close, and `is_dead` never says so of one that lives, hung or not. Between machines it ends when
  nothing was heard of the process for a time. If that lives, its next `read` or `append` fails: it must stop.

`claim` comes first. Everything but `watch` and `is_dead` may wait, and is called by one thread at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from gapless.core.records import MetadataRecord
from gapless.errors import GaplessError

COMPACT_AFTER_CHANGES = 500
"""So many changes make a new snapshot worth while."""
KEPT_CHANGES = 5000
"""So many changes stay readable behind a snapshot, for brokers that have not read them yet."""


class JournalMoved(Exception):
    """Somebody else wrote first: decide again on the newer state."""


class JournalFailed(Exception):
    """The journal cannot be read or written; the message says where and why."""


class CannotCoordinate(GaplessError):
    """The place of coordination cannot be used; the message says why, and what to do."""


class NodeIdInUse(CannotCoordinate):
    """A living broker has this number."""


class Coordination(Protocol):
    """One broker's access to what all brokers share."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id, the same for all who ask; the first to ask decides it."""

    def claim(self, node_id: int) -> None:
        """Begin this broker's session, or raise `NodeIdInUse`."""

    def taken(self) -> set[int]:
        """The numbers that brokers have, or ever had."""

    def read(self, after_version: int) -> tuple[int, list[MetadataRecord]]:
        """All records after a version, and the version that they bring an image to.

        After version 0 they may be a snapshot and what followed it. Raises `JournalFailed`.
        """

    def append(self, expected_version: int, records: Sequence[MetadataRecord]) -> int:
        """Write records; the new version. Raises `JournalMoved` or `JournalFailed`."""

    def compact(self, version: int, records: Sequence[MetadataRecord]) -> None:
        """Take a snapshot of the image at `version`, once the history has grown. Raises `JournalFailed`."""

    def announce(self) -> None:
        """After `append`, once this broker has taken in what it appended: let the others know.

        Not before: they would ask a new leader for what it does not know yet. May come on any thread.
        """

    def watch(self, loop: asyncio.AbstractEventLoop, moved: Callable[[], None]) -> None:
        """Call `moved` on the loop's thread soon after others announce, or sessions end, or more often."""

    def is_dead(self, node_id: int) -> bool:
        """Whether no process has this broker's session, as the last `read` or a later look has found.

        Asked of others only; never waits.
        """

    def interrupt(self) -> None:
        """The broker stops: whoever waits for a place that cannot be reached need not wait any longer."""

    def close(self) -> None:
        """End the session, let the others know, and release everything."""
