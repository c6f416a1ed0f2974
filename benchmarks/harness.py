"""Runs suites in rounds, each contender in turn, and keeps every value.

Rounds go A B, B A, A B, …, so that neither is always the second. Only one broker runs at a time.
A ratio is taken within a round, never between rounds: the machine may have changed in between.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.brokers import OURS, PEER, TITLES
from benchmarks.progress import Progress
from benchmarks.scenarios.step import Figure, Step, Suite
from benchmarks.session import Session
from benchmarks.sizes import Sizes
from benchmarks.statistics import Summary


@dataclass(slots=True)
class Cell:
    """One figure of one step: its values by contender, one per round."""

    step: Step
    figure: Figure
    values: dict[str, list[float]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.step.key}.{self.figure.key}"

    def summary(self, contender: str) -> Summary | None:
        values = self.values.get(contender)
        return Summary.of(values) if values else None

    def ratio(self) -> Summary | None:
        """Ours to the peer's, round by round."""
        ours, peer = self.values.get(OURS), self.values.get(PEER)
        if not ours or not peer:
            return None
        return Summary.of([mine / theirs for mine, theirs in zip(ours, peer, strict=True)])

    def verdict(self) -> str:
        """`ok` or `short` where there is a target and a ratio, else nothing."""
        ratio, target = self.ratio(), self.figure.target
        if ratio is None or target is None:
            return ""
        return "ok" if target.met_by(ratio.median) else "short"


class Harness:
    """Runs a programme and holds its cells."""

    def __init__(self, suites: Sequence[Suite], sizes: Sizes, rounds: int, contenders: Sequence[str]) -> None:
        self._suites = [suite for suite in suites if suite.steps]
        self._sizes = sizes
        self._rounds = rounds
        self._contenders = contenders
        self._cells = {
            (step.key, figure.key): Cell(step, figure)
            for suite in self._suites
            for step in suite.steps
            for figure in step.figures
        }

    @property
    def cells(self) -> list[Cell]:
        """In the order of the programme, but with figures under one title side by side."""
        titles = list(dict.fromkeys(cell.step.title for cell in self._cells.values()))
        return sorted(self._cells.values(), key=lambda cell: titles.index(cell.step.title))

    @property
    def step_count(self) -> int:
        """How many steps `run` will report."""
        return sum(len(suite.steps) for suite in self._suites) * self._rounds * len(self._contenders)

    def run(self, progress: Progress) -> None:
        """All suites, all rounds, all contenders."""
        for suite in self._suites:
            for round_number in range(self._rounds):
                order = self._contenders if round_number % 2 == 0 else self._contenders[::-1]
                for contender in order:
                    where = f"round {round_number + 1}/{self._rounds} · {TITLES[contender]}"
                    self._run_session(suite, contender, where, progress)

    def _run_session(self, suite: Suite, contender: str, where: str, progress: Progress) -> None:
        session = Session(suite.make(contender), self._sizes)
        try:
            for step in suite.steps:
                progress.begin(f"{where} · {step.title}")
                began_s = time.monotonic()
                values = step.measure(session)
                for figure in step.figures:
                    cell = self._cells[step.key, figure.key]
                    cell.values.setdefault(contender, []).append(values[figure.key])
                progress.done(time.monotonic() - began_s, _brief(step, values))
        finally:
            session.discard()


def _brief(step: Step, values: Mapping[str, float]) -> str:
    return ", ".join(f"{figure.key} {values[figure.key]:.4g} {figure.unit}" for figure in step.figures)
