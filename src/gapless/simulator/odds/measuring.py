"""Many plays, on all cores: the same seed gives the same samples, however many workers there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import NamedTuple
from zlib import crc32

from gapless.simulator.campaign import pool
from gapless.simulator.odds.configuration import Configuration
from gapless.simulator.odds.kinds import KINDS
from gapless.simulator.odds.model import Model
from gapless.simulator.odds.stage import Stage, Taken

Samples = dict[str, list[Taken]]
"""By kind of fault, what each play has taken."""
PLAYS_AT_ONCE = 5


class Task(NamedTuple):
    """Some plays of one fault."""

    configuration: Configuration
    kind: str
    model: Model
    seed: int
    turns: range


def play(task: Task) -> list[Taken]:
    """What each play takes."""
    kind = KINDS[task.kind]
    return [
        Stage(task.configuration, task.model, _seed_of(task, turn)).play(kind.strike, kind.lasts_ms)
        for turn in task.turns
    ]


def _seed_of(task: Task, turn: int) -> int:
    """The same for all configurations, so that they meet the same faults at the same moments."""
    return crc32(f"{task.seed} {task.kind} {turn}".encode())


def measure(
    configurations: Sequence[Configuration],
    kinds: Iterable[str],
    model: Model,
    *,
    plays: int,
    seed: int,
    workers: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Samples]:
    """Play every fault in every configuration; `progress` is told how many plays are done."""
    names = list(kinds)
    chunks = [range(first, min(first + PLAYS_AT_ONCE, plays)) for first in range(0, plays, PLAYS_AT_ONCE)]
    tasks = [
        Task(configuration, kind, model, seed, turns)
        for configuration, kind, turns in product(configurations, names, chunks)
    ]
    found: dict[tuple[Configuration, str], list[Taken]] = {}
    done = 0
    for task, taken in zip(tasks, _results(tasks, workers), strict=True):
        found.setdefault((task.configuration, task.kind), []).extend(taken)
        done += len(taken)
        progress(done)
    return [{kind: found[configuration, kind] for kind in names} for configuration in configurations]


def _results(tasks: list[Task], workers: int) -> Iterable[list[Taken]]:
    if workers == 1:
        yield from map(play, tasks)
        return
    with pool(workers) as processes:
        yield from processes.map(play, tasks)
