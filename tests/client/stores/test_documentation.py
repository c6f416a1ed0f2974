"""What the guide says of tables, and the examples in docstrings, are what the code does."""

from __future__ import annotations

import doctest
from pathlib import Path

from gapless.client.stores import intervals
from gapless.client.stores.schema import table_definitions

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "stores.md"


def test_the_guide_has_the_tables_as_they_are_made() -> None:
    text = GUIDE.read_text()
    definitions = table_definitions("BYTEA")
    assert len(definitions) == 3
    assert [each for each in definitions if f"{each.strip()};" not in text] == []


def test_examples_in_docstrings_are_true() -> None:
    assert doctest.testmod(intervals).failed == 0
