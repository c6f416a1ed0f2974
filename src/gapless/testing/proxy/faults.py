"""What is wrong with the network at a moment, as data that two processes can exchange, and its judgements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Fate(StrEnum):
    """What happens to a Produce request and to its answer."""

    DELIVER = "deliver"
    LOSE_REQUEST = "lose-request"
    """The connection is cut before the broker sees anything of it."""
    TEAR_REQUEST = "tear-request"
    """The broker gets half of it; then the connection is cut."""
    LOSE_ANSWER = "lose-answer"
    """The broker has done it; the connection is cut instead of the answer."""
    SILENCE = "silence"
    """The broker has done it; the connection stays open, and neither this nor a later answer comes."""


@dataclass(slots=True)
class Network:
    """Who cannot reach whom, and who is far away. Everything is symmetric."""

    isolated: list[int] = field(default_factory=list)
    cuts: list[tuple[int, int]] = field(default_factory=list)
    slow_ms: dict[int, float] = field(default_factory=dict)

    def blocks(self, sender: int | None, receiver: int) -> bool:
        """Whether nothing passes between two brokers, or between a client (no sender) and a broker."""
        if receiver in self.isolated or sender in self.isolated:
            return True
        return any({sender, receiver} == set(pair) for pair in self.cuts)

    def delay_s(self, sender: int | None, receiver: int) -> float:
        """How long a message is under way, each way."""
        if not self.slow_ms:
            return 0.0
        to_sender = 0.0 if sender is None else self.slow_ms.get(sender, 0.0)
        return max(to_sender, self.slow_ms.get(receiver, 0.0)) / 1000

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Network:
        """The reverse of `to_json`: JSON has neither tuples nor keys that are numbers."""
        return cls(
            list(data["isolated"]),
            [(first, second) for first, second in data["cuts"]],
            {int(broker): delay_ms for broker, delay_ms in data["slow_ms"].items()},
        )


class Plan:
    """The fates of the Produce requests to come, in order; after them all are delivered."""

    def __init__(self) -> None:
        self._fates: list[tuple[int | None, Fate]] = []
        self.done: Counter[Fate] = Counter()
        """What has come true, by kind of misfortune."""

    def add(self, fates: Iterable[Fate], broker: int | None) -> None:
        """Plan for the next requests to one broker, or to any."""
        self._fates += [(broker, fate) for fate in fates]

    def clear(self) -> None:
        """Deliver everything from now on."""
        self._fates.clear()

    def take(self, broker: int) -> Fate:
        """The fate of a request that arrives now."""
        for index, (which, fate) in enumerate(self._fates):
            if which is None or which == broker:
                del self._fates[index]
                return fate
        return Fate.DELIVER
