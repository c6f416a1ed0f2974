"""Many seeds: how far it is, what was found, and what was never exercised."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

from gapless.cli.output import note, say, say_json, say_table, styled
from gapless.cli.progress import LINE_EVERY_S, Lines
from gapless.cli.simulate.names import Asked
from gapless.errors import ExitCode
from gapless.simulator.campaign import Tally, campaign
from gapless.simulator.coverage import ROLES, Expected

SHOWN_FAILURES = 20


class View(Lines):
    """A bar in a terminal, a line every few seconds when piped."""

    def __init__(self, total: int) -> None:
        super().__init__(_rich_bar)
        self._total = total
        self._began_s = time.monotonic()
        self._next_s = self._began_s + LINE_EVERY_S
        self._task = None if self._live is None else self._live.add_task("", total=total)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._began_s

    def show(self, tally: Tally) -> None:
        """How far it is."""
        rate = tally.seeds / max(self.seconds, 0.001)
        found = f"{len(tally.failures):,} found" if tally.failures else "nothing found"
        text = (
            f"{rate:.1f} seeds/s, {tally.faults.total():,} faults, {tally.records:,} records checked, {found}"
        )
        if self._live is not None:
            self._live.update(self._task, completed=tally.seeds, description=text)
        elif time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + LINE_EVERY_S
            self.line(f"{tally.seeds:,} of {self._total:,} seeds: {text}")


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=Console(stderr=True), transient=True)


def play_many(asked: Asked, seeds: range, workers: int, *, as_json: bool) -> int:
    """Play many seeds, and say what came of it."""
    profile = asked.profile()
    tally, interrupted = Tally(), False
    with View(len(seeds)) as view:
        try:
            with closing(campaign(profile, seeds, workers=workers)) as tallies:
                for each in tallies:
                    tally.add(each)
                    view.show(tally)
        except KeyboardInterrupt:
            interrupted = True
        seconds = view.seconds
    if interrupted:
        note(f"interrupted after {tally.seeds:,} of {len(seeds):,} seeds")
    expected = Expected.of(profile)
    if as_json:
        say_json(_as_json(asked, seeds, tally, expected, seconds) | {"interrupted": interrupted})
    else:
        _show_failures(asked, tally)
        show_coverage(tally, expected)
        _show_verdict(tally, seconds)
    if tally.failures:
        return int(ExitCode.FAILED)
    return int(ExitCode.INTERRUPTED if interrupted else ExitCode.OK)


def _as_json(asked: Asked, seeds: range, tally: Tally, expected: Expected, seconds: float) -> dict[str, Any]:
    return {
        "profile": asked.name,
        "rates": dict(asked.profile().rates),
        "first": seeds.start,
        "seeds": tally.seeds,
        "failures": [
            {
                "seed": failure.seed,
                "anomaly": failure.anomaly,
                "text": failure.text,
                "replay": _replay(asked, failure.seed),
            }
            for failure in tally.failures
        ],
        "faults": dict(sorted(tally.faults.items())),
        "records": tally.records,
        "events": tally.events,
        "acknowledged": tally.promised,
        "judged": tally.judged,
        "excused": {"runs": tally.excused_runs, "topics": dict(sorted(tally.excused.items()))},
        "virtual_ms": tally.virtual_ms,
        "seconds": round(seconds, 3),
        "coverage": expected.as_json(tally.coverage) | {"never_came": expected.never_came(tally.faults)},
    }


def _replay(asked: Asked, seed: int) -> str:
    return f"gapless simulate --seed {seed} {asked.argv()}"


def _show_failures(asked: Asked, tally: Tally) -> None:
    for failure in tally.failures[:SHOWN_FAILURES]:
        say(f"{styled(failure.anomaly, 'bold red')}: {failure.text}")
        say(f"  {_replay(asked, failure.seed)}")
    more = len(tally.failures) - SHOWN_FAILURES
    if more > 0:
        say(f"and {more:,} more (--json names them)")


def show_coverage(tally: Tally, expected: Expected) -> None:
    """Which faults hit whom, and what is left to be exercised."""
    hits = tally.coverage.hits
    faults = list(dict.fromkeys(fault for fault, _ in expected.pairs))
    if faults:
        rows = [(fault, *(hits[fault, role] for role in ROLES)) for fault in faults]
        say_table(("fault", *ROLES), rows)
    rules, pairs = expected.blind_spots(tally.coverage)
    say(
        f"coverage: {len(expected.rules) - len(rules)} of {len(expected.rules)} rules at work, "
        f"{len(expected.pairs) - len(pairs)} of {len(expected.pairs)} pairs of fault and role"
    )
    if rules:
        say(f"never seen: {'; '.join(rules)}")
    faults_missed = expected.never_came(tally.faults)
    if faults_missed:
        say(f"never came: {', '.join(faults_missed)}")


def _show_verdict(tally: Tally, seconds: float) -> None:
    runs = "1 run" if tally.excused_runs == 1 else f"{tally.excused_runs:,} runs"
    say(
        f"of {tally.promised:,} acknowledged records {tally.judged:,} were judged; "
        f"topics were excused in {runs if tally.excused_runs else 'no run'}"
    )
    verdict = (
        styled(f"{len(tally.failures):,} seeds broke a promise", "bold red")
        if tally.failures
        else styled("every promise was kept", "bold green")
    )
    say(
        f"{verdict}: {tally.seeds:,} seeds, {tally.faults.total():,} faults, {tally.records:,} records, "
        f"{tally.events:,} events in {seconds:.1f} s"
    )
