"""Arrow columns arrive in PostgreSQL as they are, whatever their type and wherever they have nulls."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from gapless.pipeline.sinks.postgres import copying
from gapless.pipeline.sinks.postgres.copying import HEADER, TRAILER, encoded

ROWS = 700
_EXACT = Context(prec=60)
DECIMALS = [(1, 0), (5, 5), (7, 3), (9, 2), (10, 10), (18, 4), (19, 0), (20, 6), (38, 0), (38, 18), (38, 37)]


def a_decimal(chance: random.Random, precision: int, scale: int) -> Decimal:
    largest = 10**precision - 1
    unscaled = chance.choice(
        [0, 1, largest, -largest, chance.randint(-largest, largest), chance.randint(-9, 9)]
    )
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def a_time(chance: random.Random) -> datetime:
    return datetime(chance.randint(1, 9998), 12, 31, 23, 59, 59, chance.randint(0, 999_999), tzinfo=UTC)


def kinds(chance: random.Random) -> dict[str, tuple[pa.DataType, str, Callable[[], Any]]]:
    """For each column Arrow's type, PostgreSQL's, and a maker of values."""
    made: dict[str, tuple[pa.DataType, str, Callable[[], Any]]] = {
        "text": (pa.string(), "text", lambda: chance.choice(["", "é\"'\\N\t\r\n", "\\.", "x" * 300, "漢字"])),
        "large": (pa.large_string(), "text", lambda: "y" * chance.randint(0, 9)),
        "bytes": (pa.binary(), "bytea", lambda: chance.randbytes(chance.randint(0, 20))),
        "byte": (pa.int8(), "int2", lambda: chance.randint(-(2**7), 2**7 - 1)),
        "short": (pa.int16(), "int2", lambda: chance.randint(-(2**15), 2**15 - 1)),
        "int": (pa.int32(), "int4", lambda: chance.randint(-(2**31), 2**31 - 1)),
        "long": (pa.int64(), "int8", lambda: chance.choice([-(2**63), 2**63 - 1, chance.getrandbits(40)])),
        "float": (pa.float32(), "float4", lambda: chance.choice([0.5, float("inf"), -0.25])),
        "double": (pa.float64(), "float8", lambda: chance.choice([chance.random(), 1e308, float("-inf")])),
        "flag": (pa.bool_(), "bool", lambda: chance.random() < 0.5),
        "day": (pa.date32(), "date", lambda: a_time(chance).date()),
        "moment": (pa.timestamp("us", "UTC"), "timestamptz", lambda: a_time(chance)),
        "elsewhere": (
            pa.timestamp("us", "Asia/Tokyo"),
            "timestamptz",
            lambda: datetime(2026, 1, 1, tzinfo=UTC),
        ),
        "clock": (pa.timestamp("us"), "timestamp", lambda: a_time(chance).replace(tzinfo=None)),
        "json": (pa.string(), "jsonb", lambda: '{"a": [1, "\\""]}'),
    }
    for precision, scale in DECIMALS:
        made[f"decimal_{precision}_{scale}"] = (
            pa.decimal128(precision, scale),
            "numeric",
            lambda p=precision, s=scale: a_decimal(chance, p, s),  # type: ignore[misc]
        )
    return made


def through_postgres(dsn: str, batches: list[pa.RecordBatch], types: list[str]) -> list[tuple[Any, ...]]:
    names = batches[0].schema.names
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'UTC'")
        columns = ", ".join(f'"{name}" {kind}' for name, kind in zip(names, types, strict=True))
        cursor.execute(f"CREATE TEMPORARY TABLE copied ({columns})")
        with cursor.copy("COPY copied FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(HEADER)
            for batch in batches:
                for data in encoded(batch, types):
                    copy.write(data)
            copy.write(TRAILER)
        shown = ", ".join(
            f'"{name}"::text' if kind == "jsonb" else f'"{name}"'
            for name, kind in zip(names, types, strict=True)
        )
        return cursor.execute(f"SELECT {shown} FROM copied").fetchall()


@pytest.mark.parametrize("nulls", [0.0, 0.2, 1.0])
def test_every_type_arrives_as_it_was(dsn: str, nulls: float) -> None:
    chance = random.Random(7)
    made = kinds(chance)
    columns = {
        name: pa.array([None if chance.random() < nulls else value() for _ in range(ROWS)], kind)
        for name, (kind, _, value) in made.items()
    }
    whole = pa.RecordBatch.from_pydict(columns)
    # Slices, as their buffers begin somewhere else; one of them is empty.
    batches = [whole.slice(0, 1), whole.slice(1, 0), whole.slice(1, 300), whole.slice(301)]
    found = through_postgres(dsn, batches, [kind for _, kind, _ in made.values()])
    expected = list(zip(*(column.to_pylist() for column in whole.columns), strict=True))
    assert found == expected
    # Equal decimals may differ in their number of places.
    assert [_places(row) for row in found] == [_places(row) for row in expected]


def _places(row: tuple[Any, ...]) -> list[Any]:
    return [value.as_tuple().exponent for value in row if isinstance(value, Decimal)]


def test_the_ends_of_time_that_spark_has_arrive(dsn: str) -> None:
    columns = {
        "day": pa.array([date(1, 1, 1), date(1999, 12, 31), date(9999, 12, 31)]),
        "clock": pa.array([datetime(1, 1, 1), datetime(1999, 12, 31), datetime(2000, 1, 1)]),  # noqa: DTZ001
    }
    batch = pa.RecordBatch.from_pydict(columns)
    assert through_postgres(dsn, [batch], ["date", "timestamp"]) == [
        tuple(row.values()) for row in batch.to_pylist()
    ]


def test_a_batch_that_is_too_large_for_one_piece_is_cut(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_BYTES_AT_ONCE", 1000)
    texts = [str(number) * 100 for number in range(200)]
    batch = pa.RecordBatch.from_pydict({"text": texts})
    assert len(list(encoded(batch, ["text"]))) > 10
    assert through_postgres(dsn, [batch], ["text"]) == [(text,) for text in texts]
