"""Many seeds, over several processes. What comes of them is the same however many processes there are."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from gapless.simulator.cases import make_case
from gapless.simulator.coverage import Coverage
from gapless.simulator.covering import Covering
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES
from gapless.simulator.run import Report, play
from gapless.simulator.watching import Watcher

CHUNK = 5
AHEAD = 3
"""How many chunks wait for each process: enough to keep it busy, few enough to stop soon."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that broke a promise."""

    seed: int
    anomaly: str
    text: str
    steps: int


@dataclass(slots=True)
class Tally:
    """What came of some seeds."""

    seeds: int = 0
    events: int = 0
    records: int = 0
    virtual_ms: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def note(self, report: Report) -> None:
        """Count a run."""
        self.seeds += 1
        self.events += report.events
        self.records += report.records
        self.virtual_ms += report.virtual_ms
        self.faults.update(report.faults)
        if report.violation is not None:
            found = report.violation
            self.failures.append(Failure(report.case.seed, found.anomaly, found.text, len(report.case.steps)))

    def add(self, other: Tally) -> None:
        """Take another's counts."""
        self.seeds += other.seeds
        self.events += other.events
        self.records += other.records
        self.virtual_ms += other.virtual_ms
        self.faults.update(other.faults)
        self.failures += other.failures
        self.coverage.add(other.coverage)


@contextmanager
def mistaken(mutant: str | None) -> Iterator[None]:
    """Make a mutant's mistake for a while, if one is named."""
    with nullcontext() if mutant is None else MUTANTS[mutant].applied():
        yield


def play_seeds(profile: str, seeds: Iterable[int], mutant: str | None = None) -> Tally:
    """Play some seeds in this process, and count what they exercise."""
    tally = Tally()
    watcher: Watcher = Covering(tally.coverage)
    with mistaken(mutant):
        for seed in seeds:
            tally.note(play(make_case(seed, PROFILES[profile]), watcher))
    return tally


def campaign(
    profile: str, seeds: range, *, workers: int = 1, mutant: str | None = None
) -> Generator[Tally, None, None]:
    """Play many seeds; what came of each chunk comes in the order of seeds. Closing it ends the processes."""
    chunks = (seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK))
    if workers == 1:
        for chunk in chunks:
            yield play_seeds(profile, chunk, mutant)
        return
    with pool(workers) as processes:
        waiting: deque[Future[Tally]] = deque()
        for chunk in chunks:
            waiting.append(processes.submit(play_seeds, profile, chunk, mutant))
            if len(waiting) > workers * AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that leave Ctrl-C to their parent. They start anew: its threads and locks are not copied."""
    processes = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_leave_interrupts_to_the_parent
    )
    try:
        yield processes
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()  # a hunt may go on for minutes
        raise
    finally:
        processes.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
