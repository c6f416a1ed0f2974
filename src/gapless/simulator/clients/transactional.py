"""Transactional producers that make the transactions of a plan.

A producer that is replaced goes on as a zombie, until somebody tells it that it is fenced.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.simulator.clients.process import Part, Process
from gapless.simulator.clients.producer import MAX_IN_FLIGHT
from gapless.simulator.clients.transactions import GivenUp, TransactionalClient
from gapless.simulator.history import Attempt, Place, Write

if TYPE_CHECKING:
    from gapless.simulator.scene import Scene


@dataclass(frozen=True, slots=True)
class Plan:
    """A transaction to be made: how many values to each place, and whether it is committed."""

    writes: list[tuple[Place, int]]
    commit: bool

    def __str__(self) -> str:
        wish = "committed" if self.commit else "aborted"
        writes = ", ".join(f"{count} to {place[0]}-{place[1]}" for place, count in self.writes)
        return f", to be {wish}: {writes}"


class TransactionalProducer(TransactionalClient):
    """Makes one transaction after another."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        *,
        transactional_id: str,
        newer: bool,
        timeout_ms: int = 3_000,
        pipelined: bool = False,
    ) -> None:
        """`pipelined`: all batches of a transaction are in flight together."""
        super().__init__(scene, name, transactional_id, newer=newer, timeout_ms=timeout_ms)
        self.pipelined = pipelined
        self._plans: deque[Plan] = deque()
        self._working = False

    def transact(self, plan: Plan) -> None:
        """Make a transaction when all before it are done."""
        self._plans.append(plan)
        if not self._working:
            self._working = True
            self.begin(self._work())

    def _work(self) -> Process:
        while self._plans and not self.is_fenced:
            if not self.is_ready:
                yield from self.start()
                continue
            plan = self._plans.popleft()
            attempt = self.history.begins(self.name, self.transactional_id, str(plan))
            try:
                yield from self._make(plan, attempt)
            except GivenUp as why:
                self.gives_up(attempt, why)
        self._working = False

    def _make(self, plan: Plan, attempt: Attempt) -> Part:
        size = MAX_IN_FLIGHT if self.pipelined else 1
        for first in range(0, len(plan.writes), size):
            yield from self.write(
                *(
                    (place, self._values(place, count, attempt))
                    for place, count in plan.writes[first : first + size]
                )
            )
        yield from self.end(attempt, plan.commit)

    def _values(self, place: Place, count: int, attempt: Attempt) -> list[Write]:
        return [
            self.history.sends(self.name, place, acks=-1, once=True, attempt=attempt) for _ in range(count)
        ]
