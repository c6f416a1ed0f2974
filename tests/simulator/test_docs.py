"""docs/simulator.md is true: it names everything there is, and its story is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.simulator.campaign import mistaken
from gapless.simulator.checkers import CHECKERS
from gapless.simulator.faults import FAULTS
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.profiles import PROFILES
from gapless.simulator.story import tell

from .test_story import LOST

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "simulator.md").read_text()


@pytest.mark.parametrize("names", [PROFILES, FAULTS, CHECKERS, MUTANTS], ids=lambda names: next(iter(names)))
def test_everything_has_its_row(names: dict[str, object]) -> None:
    assert not [name for name in names if f"\n| `{name}` | " not in DOCS]


def test_the_story_is_what_is_told_of_a_lost_record() -> None:
    with mistaken("early-acknowledgement"):
        story, _ = tell(LOST)
    told = [*story.stage, "", *map(str, story.lines), "", *story.ending]
    assert "\n".join(told) in DOCS
