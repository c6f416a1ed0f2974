"""F1: a word's meaning runs through producer, topic and consumer, and is written in one place."""

from __future__ import annotations

import doctest

import pytest

import gapless
from gapless.client import semantics
from gapless.client.semantics import MEANS, Semantics
from gapless.errors import UsageError
from tests.client.producing.test_settings import settled


def test_its_example_runs() -> None:
    assert doctest.testmod(semantics).failed == 0


@pytest.mark.parametrize("word", list(Semantics))
def test_f1_a_producer_is_settled_as_the_word_says(word: Semantics) -> None:
    settings = settled(word, **({"spool": "folder"} if word is Semantics.EXACTLY_ONCE else {}))
    properties = {**settings.librdkafka(), "spool": settings.spool_mode, "transactional.id": "source"}
    for name, value in MEANS[word].producer.items():
        assert str(properties[name]).lower() == value


def test_f1_every_word_says_something_of_each_part() -> None:
    assert set(MEANS) == set(Semantics)
    for word, meaning in MEANS.items():
        assert meaning.producer
        assert meaning.consumer["enable.auto.commit"] == "false"
        assert bool(meaning.topic) == (word is not Semantics.AT_MOST_ONCE)


def test_another_word_is_refused() -> None:
    with pytest.raises(UsageError, match="choose at-most-once, at-least-once, exactly-once"):
        Semantics.named("once")


def test_producer_and_consumer_are_found_at_the_front_door() -> None:
    assert gapless.Producer.__module__ == "gapless.client.producing.producer"
    assert gapless.Consumer.__module__ == "gapless.client.consuming.consumer"
    with pytest.raises(AttributeError, match="no attribute 'Consummer'"):
        _ = gapless.Consummer
