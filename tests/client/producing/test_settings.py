"""F1: one word sets everything; a setting that would make the word untrue is refused, with the reason."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest

from gapless.client import durations
from gapless.client.producing.settings import Settings, settle
from gapless.errors import UsageError

DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("acks", "idempotence", "retries", "backoff_ms", "delivery_timeout_ms", "buffer_ms"),
            *("buffer_messages", "batch_messages", "when_full", "spool", "spool_mode", "spool_max_bytes"),
            "properties",
        )
    ),
    "spool_when_full": "refuse",
    "keep": "24h",
    "transaction_ms": 100,
    "transaction_records": 10_000,
    "seal_every_s": 10,
}


def settled(semantics: str | None = "at-least-once", **given: Any) -> Settings:
    return settle("broker:9092", "orders-api", semantics, {**DEFAULTS, **given})


def test_at_most_once_confirms_nothing_and_sends_nothing_twice() -> None:
    settings = settled("at-most-once")
    assert (settings.acks, settings.retries, settings.idempotence) == ("0", 0, False)
    assert settings.when_full == "drop"


def test_at_least_once_is_confirmed_by_all_and_idempotent() -> None:
    settings = settled()
    assert (settings.acks, settings.retries, settings.backoff_ms) == ("all", 3, 300)
    assert settings.idempotence
    assert settings.when_full == "block"
    assert settings.delivery_timeout_ms == 120_000


def test_a_spool_to_fall_back_on_is_used_when_the_attempts_would_be_over() -> None:
    """B9: 3 retries after 300 ms each, of 2 s at most: librdkafka's own clock is set to that."""
    settings = settled(spool="folder")
    assert (settings.spool_mode, settings.when_full) == ("fallback", "spool")
    assert settings.delivery_timeout_ms == 4 * 2_000 + 3 * 300
    assert settings.librdkafka()["request.timeout.ms"] == 2_000
    assert settled(spool="folder", delivery_timeout_ms=500).delivery_timeout_ms == 500


def test_with_everything_in_a_spool_sending_never_gives_up() -> None:
    settings = settled(spool="folder", spool_mode="always")
    assert settings.delivery_timeout_ms == 0
    assert settings.retries > 1_000_000


def test_exactly_once_has_all_records_in_the_spool() -> None:
    settings = settled("exactly-once", spool="folder")
    assert (settings.spool_mode, settings.acks, settings.idempotence) == ("always", "all", True)
    assert (settings.spool, settings.keep_s) == (Path("folder"), 86_400.0)


def test_without_a_word_everything_is_the_users_choice() -> None:
    assert settled(None, acks=0).acks == "0"
    assert settled(None, acks=1, retries=5).retries == 5
    assert not settled(None, acks=1).idempotence
    assert settled(None, acks=-1).acks == "all"


@pytest.mark.parametrize(
    ("semantics", "given", "reason"),
    [
        ("exactly-once", {"acks": 1, "spool": "f"}, "the leader may die with a record that it alone has"),
        ("exactly-once", {}, "a crash would leave no way to know what was sent"),
        ("exactly-once", {"spool": "f", "spool_mode": "fallback"}, "was never on disk"),
        ("exactly-once", {"spool": "f", "idempotence": False}, "made of idempotent writes"),
        ("exactly-once", {"spool": "f", "when_full": "drop"}, "what is dropped is lost"),
        ("at-least-once", {"acks": 0}, "nothing is confirmed"),
        ("at-least-once", {"acks": 1}, "it alone has confirmed"),
        ("at-least-once", {"when_full": "drop"}, "what is dropped is lost"),
        ("at-least-once", {"retries": 0}, "nothing would be sent again"),
        ("at-most-once", {"retries": 3}, "what is sent again may come twice"),
        ("at-most-once", {"spool": "f"}, "what it sends again may come twice"),
        (None, {"idempotence": True, "acks": 1}, "what all replicas have"),
        (None, {"idempotence": True, "retries": 0}, "sent again"),
        (None, {"when_full": "spool"}, "no spool to fall back on"),
        ("at-least-once", {"properties": {"acks": "1"}}, "it alone has confirmed"),
        ("at-least-once", {"properties": {"request.required.acks": 0}}, "nothing is confirmed"),
        ("exactly-once", {"spool": "f", "properties": {"enable.idempotence": "false"}}, "idempotent writes"),
        ("at-least-once", {"retries": 2, "properties": {"retries": 4}}, "give one of them"),
        (None, {"when_full": "block", "properties": {"queue.enqueue.timeout.ms": 0}}, "give one of them"),
        (None, {"when_full": 0.5, "properties": {"queue.enqueue.timeout.ms": "-1"}}, "give one of them"),
    ],
)
def test_f1_a_contradiction_is_refused_with_its_reason(
    semantics: str | None, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        settled(semantics, **given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"acks": 2}, "choose 0, 1 or all"),
        ({"retries": -1}, "a whole number"),
        ({"buffer_messages": 0}, "1 or more"),
        ({"when_full": "wait"}, "choose block, drop, spool or a number of seconds"),
        ({"spool_mode": "always"}, "needs a spool"),
        ({"spool": "f", "spool_mode": "sometimes"}, "choose always or fallback"),
        ({"spool": "f", "spool_when_full": "drop"}, "choose refuse or block"),
        ({"spool": "f", "spool_max_bytes": "1GB"}, "give a whole number"),
        ({"properties": {"queue.enqueue.timeout.ms": "soon"}}, "cannot be understood"),
        ({"properties": {"stats_cb": "call me"}}, "must be something to call"),
        ({"spool": "f", "keep": "a day"}, "write it like 24h"),
        ({"properties": {"transactional.id": "x"}}, "a source's transactional id is its name"),
        ({"properties": {"bootstrap.servers": "x"}}, "as the first argument"),
        ({"properties": {"partitioner": "random"}}, "as Java's clients do"),
        ({"properties": {"default.topic.config": {"acks": 0}}}, "properties of their own"),
        ({"properties": {"retries": "many"}}, "cannot be understood"),
        ({"properties": {"retries": None}}, "cannot be understood"),
        ({"properties": "acks=1"}, "give a mapping from name to value"),
        ({"idempotence": "false"}, "give True or False"),
        ({"delivery_timeout_ms": 2**40}, "more than librdkafka can count"),  # which made it 0: for ever
        ({"buffer_ms": float("nan")}, "a number of milliseconds"),
        ({"spool": 5}, "name a folder"),
        ({"spool": ""}, "name a folder"),
        ({"keep": None}, "is no duration"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refused:
        settled(**given)
    assert "\n" not in str(refused.value)


def test_other_things_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="choose at-most-once, at-least-once, exactly-once"):
        settled("perhaps-once")
    with pytest.raises(UsageError, match="cannot name a source"):
        settle("broker:9092", "a b", None, DEFAULTS)
    with pytest.raises(UsageError, match="7 cannot name a source"):
        settle("broker:9092", 7, None, DEFAULTS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="addresses"):
        settle(" ", "a", None, DEFAULTS)
    with pytest.raises(UsageError, match="addresses"):
        settle(["broker:9092"], "a", None, DEFAULTS)  # type: ignore[arg-type]


def test_properties_of_librdkafka_say_the_same_as_arguments_and_more() -> None:
    settings = settled(
        properties={"linger.ms": 20, "queue.buffering.max.messages": "50", "sasl.mechanism": "PLAIN"}
    )
    assert (settings.buffer_ms, settings.buffer_messages) == (20.0, 50)
    assert settings.librdkafka()["sasl.mechanism"] == "PLAIN"
    assert settings.connection() == {"bootstrap.servers": "broker:9092", "sasl.mechanism": "PLAIN"}


@pytest.mark.parametrize(("wait_ms", "means"), [(-1, "block"), (0, "drop"), (250, 0.25)])
def test_b7_the_old_name_of_waiting_for_room_is_known(wait_ms: int, means: str | float) -> None:
    properties = {"queue.enqueue.timeout.ms": wait_ms}
    assert settled(None, properties=properties).when_full == means
    assert settled(None, properties=properties, when_full=means).when_full == means


def test_durations() -> None:
    assert doctest.testmod(durations).failed == 0
    for wrong in ("", "1w", "-1s", "h"):
        with pytest.raises(UsageError, match="no duration"):
            durations.seconds(wrong)
    with pytest.raises(UsageError, match="0 or more"):
        durations.seconds(-1)
