"""One word sets a consumer's half (F1), and what would make it untrue is refused with the reason."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from gapless.client.consuming.consumer import Consumer
from gapless.client.consuming.failures import DeadLetters
from gapless.client.consuming.settings import Settings, settle
from gapless.client.records import Record
from gapless.client.relaying import Relay
from gapless.client.stores.none import NoStore
from gapless.client.stores.port import Store
from gapless.errors import UsageError


class Transactional(NoStore):
    keeps_offsets = True


def settings_of(**given: Any) -> Settings:
    """Return the settings of a consumer with these arguments and the defaults of `Consumer`."""
    parameters = inspect.signature(Consumer).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return settle("localhost:1", **{**defaults, "group": "g", "topics": "t", **given})


@pytest.mark.parametrize(
    ("semantics", "store", "commit_first", "retries"),
    [
        ("at-most-once", None, True, 0),
        ("at-least-once", None, False, 3),
        ("exactly-once", Transactional(), False, 3),
        (None, None, False, 3),
    ],
)
def test_one_word_sets_all(
    semantics: str | None, store: Store | None, commit_first: bool, retries: int
) -> None:
    settings = settings_of(semantics=semantics, store=store)
    assert settings.commit_first is commit_first
    assert settings.retries == retries
    assert settings.properties["enable.auto.commit"] is False  # E3
    assert settings.properties["enable.auto.offset.store"] is False
    assert settings.properties["isolation.level"] == "read_committed"
    assert settings.properties["auto.offset.reset"] == "earliest"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"semantics": "exactly-once"},
            "exactly-once with no store: a crash between the effect and the mark",
        ),
        ({"semantics": "exactly-once", "store": NoStore()}, "with NoStore: a crash between"),
        (
            {"semantics": "exactly-once", "store": Transactional(), "order": "commit-then-process"},
            "would lose",
        ),
        ({"semantics": "at-least-once", "order": "commit-then-process"}, "would lose a record"),
        ({"semantics": "at-most-once", "order": "process-then-commit"}, "would repeat a record"),
        ({"semantics": "at-most-once", "retries": 3}, "would call a handler twice"),
        ({"semantics": "mostly-once"}, "choose at-most-once, at-least-once, exactly-once"),
        ({"order": "sometimes"}, "choose process-then-commit, commit-then-process"),
        ({"properties": {"enable.auto.commit": True}}, "would commit records that are not processed"),
        ({"properties": {"group.id": "x"}}, "use group="),
        (
            {
                "semantics": "exactly-once",
                "store": Transactional(),
                "properties": {"isolation.level": "read_uncommitted"},
            },
            "would process aborted records",
        ),
        ({"parallel_by": "key", "order": "commit-then-process"}, "by partition only"),
        ({"parallel_by": "key", "store": Transactional()}, "by partition only"),
        ({"parallel_by": "moon"}, "choose partition or key"),
        ({"workers": 0}, "use 1 or more"),
        ({"on_failure": "ignore"}, "choose 'stop' or DeadLetters"),
        ({"group": None}, "name one with group="),
        ({"group": ""}, "cannot name a group"),
        ({"topics": [7]}, "7 cannot name a topic"),
        ({"topics": 7}, "give a name, or several"),
        ({"store": "bills.db"}, r"give one like SqliteStore\(path\)"),
        ({"backoff_ms": -1}, "use 0 or more"),
        ({"commit_every_ms": "5"}, "commit_every_ms='5' cannot be: give a number"),
        ({"close_timeout_s": float("inf")}, "is too large"),
        ({"retries": 1.5}, "give a whole number"),
        ({"on_failure": DeadLetters(7)}, "7 cannot name a topic"),  # type: ignore[arg-type]
        ({"properties": {"max.poll.interval.ms": "long"}}, "cannot be understood"),
        ({"properties": ["a"]}, "give a mapping"),
    ],
)
def test_contradictions_are_refused_with_the_reason(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Consumer("localhost:1", **{"group": "g", "topics": "t", **given})


def test_every_property_of_librdkafka_can_be_given() -> None:
    settings = settings_of(
        properties={"security.protocol": "SASL_SSL", "sasl.username": "u", "fetch.min.bytes": 5},
        on_failure=DeadLetters("dead"),
    )
    assert settings.properties["fetch.min.bytes"] == 5
    shared = settings.producer_properties()
    assert shared["security.protocol"] == "SASL_SSL"
    assert "fetch.min.bytes" not in shared


@pytest.mark.parametrize(
    ("properties", "incremental"),
    [
        ({}, False),
        ({"partition.assignment.strategy": "range"}, False),
        ({"partition.assignment.strategy": "cooperative-sticky"}, True),
        ({"group.protocol": "consumer"}, True),
    ],
)
def test_the_kind_of_rebalance_is_known(properties: dict[str, str], incremental: bool) -> None:
    assert settings_of(properties=properties).incremental is incremental


def test_pulling_is_refused_with_a_store() -> None:
    consumer = Consumer("localhost:1", group="g", topics="t", store=Transactional())
    with pytest.raises(UsageError, match=r"use run\(handler\)"):
        next(iter(consumer))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"properties": {"no.such": "thing"}}, 'refuses the properties: No such .* "no.such"'),
        ({"topics": []}, "there is nothing to read"),
    ],
)
def test_what_could_never_run_is_refused_before_it_waits(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Consumer("localhost:1", **{"group": "g", "topics": "t", **given}).run(print)


def test_partitions_cannot_be_assigned_to_a_member_that_subscribes() -> None:
    with pytest.raises(UsageError, match="leave out topics="):
        Consumer("localhost:1", group="g", topics="t").assign([])


def test_handlers_take_one_argument_or_two() -> None:
    from gapless.client.consuming.processing import as_handler

    seen: list[Any] = []
    record = Record("t", 0, 1, None, b"v")
    as_handler(seen.append)(record, "tx")
    as_handler(lambda record: seen.append([record]))(record, "tx")
    as_handler(lambda record, tx: seen.append((record, tx)))(record, "tx")
    as_handler(lambda record, more=None: seen.append((record, more)))(record, "tx")
    as_handler(lambda *both: seen.append(both))(record, "tx")
    assert seen == [record, [record], (record, "tx"), (record, None), (record, "tx")]


async def _async(record: Record) -> None: ...


def _yielding(record: Record) -> Iterator[None]:
    yield


class _AsyncObject:
    async def __call__(self, record: Record) -> None: ...


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (_async, "async"),
        (partial(_async), "async"),
        (_AsyncObject(), "async"),
        (_yielding, "yield"),
        (None, "cannot be called"),
        (lambda: None, "takes 0 arguments"),
        (lambda record, tx, more: None, "takes 3 arguments"),
    ],
    ids=["async", "partial", "object", "generator", "none", "no-argument", "three-arguments"],
)
def test_a_handler_that_would_do_nothing_is_refused(handler: Any, reason: str) -> None:
    """Called, an async function does nothing and raises nothing: every record would pass for done."""
    with pytest.raises(UsageError, match=reason):
        Consumer("localhost:1", group="g", topics="t", connect_timeout_s=0.1).run(handler)


def test_a_relay_refuses_an_async_function() -> None:
    with pytest.raises(UsageError, match="async"):
        Relay("localhost:1", group="g", topics="t", function=_async)  # type: ignore[arg-type]
