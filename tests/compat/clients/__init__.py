"""What every client must be able to do here, said once: the tests speak this, each module translates it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from gapless.wire.errors import ErrorCode

from ..sample import Record

ANSWER_TIMEOUT_S = 30.0
SEEN_WITHIN_S = 10.0

Seen = TypeVar("Seen")


class BrokerRefused(Exception):
    """The broker's error, by Kafka's number for it, whatever exception the client made of it."""

    def __init__(self, code: int | None, detail: object = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = ErrorCode.UNKNOWN_SERVER_ERROR if code is None else ErrorCode(code)


class Sending(NamedTuple):
    """How to produce; None leaves the client as it comes."""

    compression: str = "none"
    idempotent: bool | None = None
    batch_bytes: int | None = None
    request_bytes_max: int | None = None
    answer_timeout_ms: int | None = None


AS_IT_COMES = Sending()


class Client(Protocol):
    """A client that writes and reads by assignment; it never joins a group."""

    name: str
    """As shown in test ids."""

    def sample(self, partition: int) -> list[Record]:
        """The most awkward records that this client can write."""
        ...

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        how: Sending = AS_IT_COMES,
        *,
        bootstrap: str | None = None,
    ) -> None:
        """Write all with acks=all and wait for every acknowledgement; BrokerRefused if one is refused."""
        ...

    def read(self, topic: str, partition: int, start: int, count: int) -> list[Record]:
        """Read `count` records from offset `start`."""
        ...

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """The first offset, and the one after the last."""
        ...

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset with a timestamp that is not earlier, if there is one."""
        ...


class Deadline:
    """A bound on polling: `while deadline.open()`, which raises once the time is up."""

    def __init__(self, waiting_for: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._waiting_for = waiting_for
        self._timeout_s = timeout_s
        self._ends_at = time.monotonic() + timeout_s

    def open(self) -> bool:
        if time.monotonic() > self._ends_at:
            raise TimeoutError(f"no {self._waiting_for} within {self._timeout_s:.0f} s")
        return True


def eventually(look: Callable[[], Seen], expected: Seen) -> None:
    """Look until it is as expected: Apache Kafka answers a change a moment before it shows it."""
    deadline = Deadline(f"{expected}", SEEN_WITHIN_S)
    while (seen := look()) != expected:
        try:
            deadline.open()
        except TimeoutError:
            raise AssertionError(f"{seen} is not {expected}") from None
