"""One case: played again, traced, told, shrunk, saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gapless.cli.output import note, say, say_json, styled
from gapless.cli.progress import Screen
from gapless.cli.simulate.names import Asked, known_mutant
from gapless.cli.simulate.telling import show_story, story_as_json
from gapless.errors import ExitCode, UsageError
from gapless.simulator.campaign import mistaken
from gapless.simulator.case import Case
from gapless.simulator.cases import make_case
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.run import Report, play
from gapless.simulator.saved import Saved, check_writable, load, save
from gapless.simulator.shrinking import Shrunk, shrink
from gapless.simulator.story import tell
from gapless.simulator.trace import Tracer

OnProgress = Callable[[int, Case], object]


@dataclass(frozen=True, slots=True)
class One:
    """What was asked for."""

    seed: int | None
    file: Path | None
    asked: Asked
    mutant: str | None
    shrinking: bool | None
    save_as: Path | None
    as_json: bool

    def play(self, *, trace: bool, story: bool) -> int:
        """Play it, and say what came of it."""
        check_writable(self.save_as)
        chosen = self._chosen()
        with mistaken(chosen.mutant):
            if trace:
                report = play(chosen.case, Tracer(say))
                say(verdict_of(report))
                self._save(chosen)
            elif story:
                report = self._tell(chosen, whole=True)
                self._save(chosen)
            else:
                report = self._judge(chosen)
        found = report.violation is not None
        expected = chosen.mutant is not None
        return int(ExitCode.OK if found == expected else ExitCode.FAILED)

    def _chosen(self) -> Saved:
        if self.mutant is not None:
            known_mutant(self.mutant)
        if self.file is not None:
            case, mutant = load(self.file)
            return Saved(case, self.mutant or mutant)
        if self.seed is None:
            raise UsageError("name a --seed or a --case")
        return Saved(make_case(self.seed, self.asked.profile()), self.mutant)

    def _judge(self, chosen: Saved) -> Report:
        """Whether it fails; if so, in how few steps, and how that goes."""
        report = play(chosen.case)
        wanted = self.file is None if self.shrinking is None else self.shrinking
        if report.violation is None:
            if self.as_json:
                say_json(report_as_json(report))
            else:
                say(verdict_of(report))
            self._save(chosen)
            return report
        if wanted:
            chosen = Saved(shrunk_with_progress(report).case, chosen.mutant)
        self._save(chosen)
        return self._tell(chosen)

    def _tell(self, chosen: Saved, *, whole: bool = False) -> Report:
        story, report = tell(chosen.case, whole=whole)
        if self.as_json:
            say_json(report_as_json(report) | {"story": story_as_json(story)})
            return report
        if chosen.mutant is not None:
            introduce(chosen.mutant)
        say(f"seed {chosen.case.seed}, profile {chosen.case.profile}, {len(chosen.case.steps)} steps")
        show_story(story)
        return report

    def _save(self, chosen: Saved) -> None:
        if self.save_as is not None:
            save(self.save_as, chosen)
            note(f"saved: play it again with gapless simulate --case {self.save_as}")


def shrunk_with_progress(report: Report) -> Shrunk:
    """Shrink a case that fails, and say how far it is."""
    if report.violation is None:
        raise ValueError("nothing was found")
    steps = len(report.case.steps)
    with Screen(lines_when_piped=False) as screen, screen.busy(f"shrinking {steps} steps"):
        result = shrink(report.case, report.violation)
    note(f"shrunk from {steps} steps to {len(result.case.steps)}, in {result.runs} runs")
    return result


def introduce(mutant: str) -> None:
    """The mistake, its ticket and its two sentences."""
    mistake = MUTANTS[mutant]
    say(f"{styled(mutant, 'bold')} ({mistake.ticket}): {mistake.story}")
    say("")


def verdict_of(report: Report) -> str:
    """In one line."""
    case = report.case
    what = "every promise was kept" if report.violation is None else str(report.violation)
    size = f"{len(case.steps)} steps, {report.records:,} records, {report.events:,} events"
    took = f"{report.virtual_ms / 1000:.1f} virtual seconds"
    excused = f"; excused: {', '.join(report.excused)}" if report.excused else ""
    return f"seed {case.seed}, profile {case.profile}: {what} ({size}, {took}{excused})"


def report_as_json(report: Report) -> dict[str, Any]:
    """For a script."""
    found = report.violation
    return {
        "seed": report.case.seed,
        "profile": report.case.profile,
        "steps": len(report.case.steps),
        "anomaly": None if found is None else found.anomaly,
        "text": None if found is None else found.text,
        "faults": dict(sorted(report.faults.items())),
        "records": report.records,
        "events": report.events,
        "acknowledged": report.promised,
        "judged": report.judged,
        "excused": dict(report.excused),
        "virtual_ms": report.virtual_ms,
    }
