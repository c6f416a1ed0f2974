"""Mutants: each is looked for, its case is shrunk, and its story told."""

from __future__ import annotations

from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gapless.cli.output import note, say, say_json, say_table, styled
from gapless.cli.progress import Screen
from gapless.cli.simulate.names import known_mutant
from gapless.cli.simulate.one import introduce, shrunk_with_progress
from gapless.cli.simulate.telling import show_story, story_as_json
from gapless.errors import ExitCode
from gapless.simulator.campaign import Failure, mistaken, pool
from gapless.simulator.case import Case
from gapless.simulator.cases import make_case
from gapless.simulator.checkers import CHECKERS
from gapless.simulator.hunting import Hunted, find, hunt
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES
from gapless.simulator.run import play
from gapless.simulator.saved import Saved, check_writable, save
from gapless.simulator.story import tell

HARM_SEEDS = 200
"""How many are played at most until a client suffers from what was found inside the brokers."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """One mutant: what was asked for."""

    mutant: str
    first: int | None
    seeds: int
    workers: int
    save_as: Path | None
    as_json: bool

    def go(self, *, shrinking: bool) -> int:
        """Find it, shrink its case, and tell it."""
        known_mutant(self.mutant)
        check_writable(self.save_as)
        mistake = MUTANTS[self.mutant]
        first = mistake.seed if self.first is None else self.first
        found = self._find(range(first, first + self.seeds))
        if found.failure is None:
            return self._not_found(found)
        note(f"found by seed {found.failure.seed} of the profile {mistake.profile}: {found.failure.anomaly}")
        case = self._most_telling(found.failure, first)
        with mistaken(self.mutant):
            if shrinking:
                case = shrunk_with_progress(play(case)).case
            if self.save_as is not None:
                save(self.save_as, Saved(case, self.mutant))
                note(f"saved: play it again with gapless simulate --case {self.save_as}")
            story, _ = tell(case)
        if self.as_json:
            say_json(_as_json(found) | {"steps": len(case.steps), "story": story_as_json(story)})
        else:
            introduce(self.mutant)
            show_story(story)
        return int(ExitCode.OK)

    def _find(self, seeds: range, *, harm_only: bool = False) -> Hunted:
        with Screen() as screen:
            bar = screen.bar("seeds, for harm to a client" if harm_only else "seeds", len(seeds))
            return find(self.mutant, seeds, workers=self.workers, harm_only=harm_only, on_played=bar)

    def _most_telling(self, failure: Failure, first: int) -> Case:
        """The case to tell: instead of what was found inside the brokers, something that harms a client."""
        profile = PROFILES[MUTANTS[self.mutant].profile]
        if CHECKERS[failure.anomaly].looks_inside():
            harmful = self._find(range(first, first + HARM_SEEDS), harm_only=True).failure
            if harmful is not None:
                note(f"a client suffers from it by seed {harmful.seed}: {harmful.anomaly}")
                return make_case(harmful.seed, profile, harm_only=True)
        return make_case(failure.seed, profile)

    def _not_found(self, found: Hunted) -> int:
        if self.as_json:
            say_json(_as_json(found))
        else:
            say(f"{styled('not found', 'bold red')}: {self.mutant}, in {found.played:,} seeds")
        return int(ExitCode.FAILED)


def hunt_all(seeds: range, workers: int, *, as_json: bool) -> int:
    """Find all of them, each in one process, and show the table."""
    found: dict[str, Hunted] = {}
    with Screen() as screen, pool(workers) as processes:
        bar = screen.bar("mutants", len(MUTANTS))
        for done in as_completed([processes.submit(hunt, name, seeds) for name in MUTANTS]):
            each = done.result()
            found[each.mutant] = each
            screen.line(_in_one_line(each))
            bar(len(found))
    in_order = [found[name] for name in MUTANTS]
    if as_json:
        say_json([_as_json(each) for each in in_order])
    else:
        say_table(
            ("mutant", "ticket", "found", "seeds", "steps", "anomaly", "profile"),
            [_row(each) for each in in_order],
        )
        count = sum(each.failure is not None for each in in_order)
        style = "bold green" if count == len(in_order) else "bold red"
        say(styled(f"{count} of {len(in_order)} mutants were found", style))
    return int(ExitCode.OK if all(each.failure for each in in_order) else ExitCode.FAILED)


def _in_one_line(hunted: Hunted) -> str:
    if hunted.failure is None or hunted.shrunk is None:
        return f"{hunted.mutant}: not found in {hunted.played:,} seeds"
    return f"{hunted.mutant}: found after {hunted.played:,} seeds, shrunk to {len(hunted.shrunk.steps)} steps"


def _row(hunted: Hunted) -> tuple[object, ...]:
    mistake = MUTANTS[hunted.mutant]
    failure, case = hunted.failure, hunted.shrunk
    return (
        hunted.mutant,
        mistake.ticket,
        "no" if failure is None else "yes",
        hunted.played,
        None if case is None else len(case.steps),
        "-" if failure is None else failure.anomaly,
        mistake.profile,
    )


def _as_json(hunted: Hunted) -> dict[str, Any]:
    """What came of looking for a mutant, for a script."""
    mistake = MUTANTS[hunted.mutant]
    failure, case = hunted.failure, hunted.shrunk
    return {
        "mutant": hunted.mutant,
        "ticket": mistake.ticket,
        "story": mistake.story,
        "profile": mistake.profile,
        "found": failure is not None,
        "seeds": hunted.played,
        "seed": None if failure is None else failure.seed,
        "anomaly": None if failure is None else failure.anomaly,
        "steps": None if case is None else len(case.steps),
        "runs": hunted.runs,
    }
