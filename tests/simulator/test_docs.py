"""docs/simulator.md is true: it names everything there is, and its story is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gapless.simulator.campaign import mistaken
from gapless.simulator.checkers import CHECKERS
from gapless.simulator.faults import FAULTS
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES
from gapless.simulator.story import tell

from .test_story import LOST

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "simulator.md").read_text()
SIMULATOR = ROOT / "src" / "gapless" / "simulator"


ROWS = {
    "profiles": [(each.name, each.meaning) for each in PROFILES.values()],
    "faults": [(each.name, each.meaning) for each in FAULTS.values()],
    "promises": [(each.name, each.meaning) for each in CHECKERS.values()],
    "mutants": [(each.name, each.ticket, each.story) for each in MUTANTS.values()],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_everything_has_its_row(rows: list[tuple[str, ...]]) -> None:
    in_docs = [
        f"\n| `{name}` | {' | '.join(' '.join(text.split()) for text in more)} |\n" for name, *more in rows
    ]
    assert in_docs
    assert not [row for row in in_docs if row not in DOCS]


def test_the_places_that_are_named_are_there() -> None:
    named = re.findall(r"`(?:src/gapless/)?(simulator/[\w/.]+)`", DOCS)
    assert len(named) >= 4
    assert not [path for path in named if not (SIMULATOR.parent / path).exists()]


def test_the_story_is_what_is_told_of_a_lost_record() -> None:
    with mistaken("early-acknowledgement"):
        story, _ = tell(LOST)
    told = [*story.stage, "", *map(str, story.lines), "", *story.ending]
    assert "\n".join(told) in DOCS
