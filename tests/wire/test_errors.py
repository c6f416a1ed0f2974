"""Error codes are Kafka's, all of them."""

from __future__ import annotations

import pytest
from kafka.errors import kafka_errors

from gapless.wire.errors import ErrorCode

KNOWN_TO_KAFKA_PYTHON = [
    (number, error) for number, error in kafka_errors.items() if number is not None and number > 0
]


def test_codes_have_no_gap() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 134))


@pytest.mark.parametrize(("number", "error"), KNOWN_TO_KAFKA_PYTHON)
def test_every_code_has_a_name_like_kafka_pythons(number: int, error: type[Exception]) -> None:
    """Its names are old or abridged in places: one word in common is enough."""
    words = [word for word in ErrorCode(number).name.lower().split("_") if len(word) > 2]
    assert any(word in error.__name__.lower() for word in words)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("UNKNOWN_SERVER_ERROR", -1),
        ("NONE", 0),
        ("CORRUPT_MESSAGE", 2),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", 45),
        ("INVALID_RECORD", 87),
        ("UNKNOWN_TOPIC_ID", 100),
        ("SHARE_SESSION_LIMIT_REACHED", 133),
    ],
)
def test_well_known_codes_have_their_numbers(name: str, number: int) -> None:
    assert ErrorCode[name] == number
