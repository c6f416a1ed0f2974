"""Patterns mean what they mean elsewhere, and no pattern takes long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.core.consumer_groups.patterns import InvalidPattern, Pattern

letters = st.sampled_from(["a", "b", "c", "1", "\\.", ".", "[a-b]", "[^a]", "\\d", "\\w", "[-.]"])
patterns = st.recursive(
    letters,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@given(pattern=patterns, name=st.text("abc1.-", max_size=6))
def test_a_pattern_matches_the_names_that_it_matches_elsewhere(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) is bool(re.fullmatch(pattern, name))


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("^sales-.*$", "sales-eu", True),
        ("sales", "sales-eu", False),
        ("a$b", "ab", False),
        ("^|a", "", True),
        ("(a*)*", "aaaa", True),
        ("[[:alpha:]]+_[[:digit:]]+", "x_12", True),
        ("[]a]+", "a", True),
        ("\\Aa\\z", "a", True),
    ],
)
def test_anchors_and_classes(pattern: str, name: str, matches: bool) -> None:
    assert Pattern(pattern).matches(name) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a)",
        "*a",
        "a**",
        "(?i)a",
        "(?=a)",
        "\\b",
        "\\1",
        "[a",
        "[z-a]",
        "[[:x:]]",
        "a{2",
        "a{2,1}",
        "\\",
        "a" * 1001,
        "((){1000}){1000}",
        "a{9999}",
        "(" * 60 + ")" * 60,
    ],
)
def test_what_is_not_understood_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        Pattern(pattern)


def test_what_takes_exponential_time_elsewhere_does_not_here() -> None:
    assert not Pattern("(a|aa|a*)*b").matches("a" * 249)
