"""The identity by native expressions is the one that the client library tells."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from gapless.client.formats import Identity, identity_of, sequence_header, source_header
from gapless.pipeline.identity import identity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Headers = list[tuple[str, bytes | None]]
_SCHEMA = "number int, headers array<struct<key: string, value: binary>>"


def made_bys(chance: random.Random) -> list[bytes | None]:
    """Good ones, and near misses of each kind."""
    incarnation = chance.randbytes(8)
    name = "".join(chance.choices("abcXYZ019._-", k=chance.choice([1, 2, 20, 149, 150])))
    good = source_header(name, incarnation)
    bad_names = ["", "a b", "ümlaut", "name\n", "\nname", "x" * 151, "a\0b", "a/b", "ａ"]
    return [
        *([good] * 20),
        *(source_header(bad, incarnation) for bad in bad_names),
        b"\x02" + good[1:],
        b"\x00" + good[1:],
        good[: chance.randrange(12)],
        b"\x01" + incarnation + b"\xff\xfe",
        b"\x01" + incarnation + b"ok\xc3",
        b"",
        None,
    ]


def sequences(chance: random.Random) -> list[bytes | None]:
    numbers = [0, 1, 255, 256, 2**31, 2**63 - 1, chance.randrange(2**63), chance.randrange(2**20)]
    return [*map(sequence_header, numbers), b"", chance.randbytes(7), chance.randbytes(9), None]


def some_headers(chance: random.Random) -> Headers | None:
    """In any order, some of them twice, among others."""
    usual = chance.random() < 0.5
    first: Headers = [("gs", chance.choice(made_bys(chance))), ("gn", chance.choice(sequences(chance)))]
    if usual:
        return first
    more: Headers = [
        ("gs", chance.choice(made_bys(chance))),
        ("gn", chance.choice(sequences(chance))),
        ("GS", b"x"),
        ("other", chance.choice([None, b"", b"x"])),
        ("gn", None),
    ]
    every = first + more
    chance.shuffle(every)
    return chance.choice([None, [], every[: chance.randrange(1, 4)], every])


def test_native_expressions_and_the_client_library_agree(spark: SparkSession) -> None:
    chance = random.Random(20)
    cases = [some_headers(chance) for _ in range(3_000)]
    rows = [
        (
            number,
            None if headers is None else [(k, None if v is None else bytearray(v)) for k, v in headers],
        )
        for number, headers in enumerate(cases)
    ]
    frame = spark.createDataFrame(rows, _SCHEMA).select("number", identity().alias("identity"))
    found = {
        row.number: row.identity
        and Identity(row.identity.source, bytes(row.identity.incarnation), row.identity.sequence)
        for row in frame.collect()
    }
    expected = {number: identity_of(headers) for number, headers in enumerate(cases)}
    assert found == expected
    known = [who for who in expected.values() if who is not None]
    assert 500 < len(known) < 2_500, "both kinds of cases are among them"


def test_a_sequence_that_no_bigint_holds_is_no_identity(spark: SparkSession) -> None:
    """The one difference; nobody gets there."""
    headers = [("gs", bytearray(source_header("shop", b"incarnat"))), ("gn", bytearray(b"\x80" + bytes(7)))]
    frame = spark.createDataFrame([(0, headers)], _SCHEMA)
    assert frame.select(identity().alias("identity")).collect()[0].identity is None
