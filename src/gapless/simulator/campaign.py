"""Many seeds, over several processes. What comes of them is the same however many processes there are."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Thread
from typing import ParamSpec, TypeVar

from gapless.errors import GaplessError
from gapless.simulator.cases import make_case
from gapless.simulator.coverage import Coverage
from gapless.simulator.covering import Covering
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import Profile
from gapless.simulator.run import Report, play
from gapless.simulator.watching import Watcher

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

CHUNK = 5
GARBAGE = 20_000
"""How many objects more than before make a process look for garbage."""
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
    promised: int = 0
    judged: int = 0
    """Acknowledged records, and how many of them had to be there in the end."""
    excused: Counter[str] = field(default_factory=Counter)
    """In how many runs each topic was excused."""
    excused_runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def note(self, report: Report) -> None:
        """Count a run."""
        self.seeds += 1
        self.events += report.events
        self.records += report.records
        self.virtual_ms += report.virtual_ms
        self.promised += report.promised
        self.judged += report.judged
        self.excused.update(report.excused.keys())
        self.excused_runs += bool(report.excused)
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
        self.promised += other.promised
        self.judged += other.judged
        self.excused.update(other.excused)
        self.excused_runs += other.excused_runs
        self.faults.update(other.faults)
        self.failures += other.failures
        self.coverage.add(other.coverage)


@contextmanager
def mistaken(mutant: str | None) -> Iterator[None]:
    """Make a mutant's mistake for a while, if one is named."""
    with nullcontext() if mutant is None else MUTANTS[mutant].applied():
        yield


def play_seeds(
    profile: Profile, seeds: Iterable[int], mutant: str | None = None, *, harm_only: bool = False
) -> Tally:
    """Play some seeds in this process, and count what they exercise."""
    tally = Tally()
    watcher: Watcher = Covering(tally.coverage)
    with mistaken(mutant):
        for seed in seeds:
            tally.note(play(make_case(seed, profile, harm_only=harm_only), watcher))
    return tally


def campaign(
    profile: Profile, seeds: range, *, workers: int = 1, mutant: str | None = None, harm_only: bool = False
) -> Generator[Tally, None, None]:
    """Play many seeds; what came of each chunk comes in the order of seeds. Closing it ends the processes."""
    chunks = (seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK))
    if workers == 1:
        for chunk in chunks:
            yield play_seeds(profile, chunk, mutant, harm_only=harm_only)
        return
    with pool(workers) as processes:
        waiting: deque[Future[Tally]] = deque()
        for chunk in chunks:
            waiting.append(processes.submit(play_seeds, profile, chunk, mutant, harm_only=harm_only))
            if len(waiting) > workers * AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Processes(ProcessPoolExecutor):
    """A process is started when there is work for it, and inherits which signals wait.

    A terminal sends Ctrl-C to all of them, and one that is just starting would die of it with a traceback.
    """

    def submit(
        self, fn: Callable[_Given, _Result], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Result]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that leave Ctrl-C to their parent. They start anew: its threads and locks are not copied.

    The parent waits for them under locks, and an exception that strikes inside a lock's own code ends as
    another one. So Ctrl-C raises nothing there: it ends the processes, which wakes whoever waits for them.
    A process that somebody else has ended is an error: what it was at work on is not known.
    """
    processes = _Processes(workers, multiprocessing.get_context("spawn"), initializer=_settle_in)
    interrupted = False

    def interrupt(_signal: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        children = multiprocessing.active_children()
        if not children:
            raise KeyboardInterrupt  # nobody is waited for
        for child in children:
            child.terminate()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield processes
    except BrokenProcessPool:
        raise GaplessError(
            "a worker process was killed, perhaps because memory was short: try again with fewer --workers"
        ) from None
    finally:
        processes.shutdown(cancel_futures=True)
        signal.signal(signal.SIGINT, before)
        if interrupted:
            raise KeyboardInterrupt from None


def _settle_in() -> None:
    """In a new process: leave interrupts to the parent, end with it, and collect garbage seldom.

    Modules stay for good, and most of what a seed makes goes without a collector: looking at all of it again
    and again costs a twentieth of the time.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    Thread(target=_end_with_parent, daemon=True).start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)


def _end_with_parent() -> None:
    """A parent that was killed gives no more work, and nobody else would end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
