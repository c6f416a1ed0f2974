"""Records that cannot be read go aside with the reason, as they were; all others come out, none in both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gapless.errors import UsageError
from gapless.pipeline.poison import judge_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

_RECORDS = (
    "topic string, partition int, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
NOT_TEXT, EMPTY, NOT_JSON = "the value is not UTF-8", "the value is empty", "the value is not JSON"
NO_FIT = "the value is not one JSON object that fits the schema"
NO_ID = "the field id is missing"
SCHEMA = "id BIGINT NOT NULL, amount DOUBLE, note STRING, at TIMESTAMP, few ARRAY<INT>, deep STRUCT<n: INT>"

GOOD: list[bytes | None] = [
    b'{"id": 1, "amount": 2.5}',
    b'{"id": -1, "unknown": [1, {"x": null}]}\n',
    b' {"id": 1, "note": null} ',
    b'{"id": 1, "at": "2024-01-01T00:00:00Z", "few": [1, 2], "deep": {"n": 3}}',
    '{"id": 1, "note": "ü]}"}'.encode(),
    None,
]
POISON = {
    b"\xff\xfe": NOT_TEXT,
    b'{"id": 1, "note": "\xc3"}': NOT_TEXT,
    b"": EMPTY,
    b"   ": EMPTY,
    b'{"id": 1': NOT_JSON,
    b"{'id': 1}": NO_FIT,
    b"hello": NOT_JSON,
    b"null": NO_FIT,
    b"3": NO_FIT,
    b'"text"': NO_FIT,
    b"[]": NO_FIT,
    b'[{"id": 1}]': NO_FIT,
    b'[{"id": 1}, {"id": 2}]': NO_FIT,
    b'{"id": 1}, {"id": 2}': NO_FIT,
    b'{"id": 1}{"id": 2}': NO_FIT,
    b'{"id": 1} and more': NO_FIT,
    b'{"id": 1}, "note": "x"': NO_FIT,
    b'{"id": "one"}': NO_FIT,
    b'{"id": 1.5}': NO_FIT,
    b'{"id": true}': NO_FIT,
    b'{"id": 99999999999999999999}': NO_FIT,
    b'{"id": 1, "at": "yesterday"}': NO_FIT,
    b'{"id": 1, "few": [1, "x"]}': NO_FIT,
    b'{"id": 1, "deep": {"n": "x"}}': NO_FIT,
    b"{}": NO_ID,
    b'{"ID": 1}': NO_ID,
    b'{"id": null, "amount": 1}': NO_ID,
}


def records(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    own = [("trace", bytearray(b"t")), ("empty", None)]
    rows = [
        ("orders", 3, number, None, bytearray(b"k"), value and bytearray(value), own if number % 2 else None)
        if value is None or value
        else ("orders", 3, number, None, None, bytearray(), None)
        for number, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, _RECORDS)


def told(row: Row) -> dict[str, Any]:
    return {header.key: header.value and bytes(header.value) for header in row.headers}


def test_bytes_refuse_nothing(spark: SparkSession) -> None:
    rows = records(spark, [b"\xff", None])
    good, bad = judge_records(rows, "bytes")
    assert good is rows
    assert bad is None


def test_text_is_utf8(spark: SparkSession) -> None:
    values = [b"plain", "ünï".encode(), b"\xff\xfe", b"", None, b"ok\xc3"]
    good, bad = judge_records(records(spark, values), "text")
    assert [row.value for row in good.collect()] == ["plain", "ünï", "", None]
    assert bad is not None
    assert [(row.offset, bytes(row.value), row.reason) for row in bad.collect()] == [
        (2, b"\xff\xfe", NOT_TEXT),
        (5, b"ok\xc3", NOT_TEXT),
    ]


def test_json_is_one_object_that_fits_the_schema(spark: SparkSession) -> None:
    values = [*GOOD, *POISON]
    good, bad = judge_records(records(spark, values), "json", SCHEMA)
    came = good.collect()
    assert [row.offset for row in came] == list(range(len(GOOD)))
    assert [row.id for row in came] == [1, -1, 1, 1, 1, None]
    assert (came[0].amount, came[3].few, came[3].deep.n, came[4].note) == (2.5, [1, 2], 3, "ü]}")
    assert came[5].value is None, "a tombstone says that its key is deleted"
    assert bad is not None
    found = {bytes(row.value): row.reason for row in bad.collect()}
    assert found == POISON


def test_a_dead_letter_has_its_record_as_it_was_and_says_why_and_whence(spark: SparkSession) -> None:
    _, bad = judge_records(records(spark, [b"x", b"y"]), "json", "id BIGINT")
    assert bad is not None
    assert bad.columns == [
        *("key", "value", "headers", "reason", "topic", "partition", "offset", "timestamp")
    ]
    bare, with_headers = bad.collect()
    where = {"gapless.topic": b"orders", "gapless.partition": b"3", "gapless.reason": NOT_JSON.encode()}
    assert told(bare) == {**where, "gapless.offset": b"0"}
    assert told(with_headers) == {"trace": b"t", "empty": None, **where, "gapless.offset": b"1"}
    assert (bytes(bare.key), bytes(bare.value), bare.topic, bare.partition) == (b"k", b"x", "orders", 3)


def test_fields_keep_their_names_and_the_records_own_columns_make_way(spark: SparkSession) -> None:
    value = json.dumps({"Timestamp": "then", "value": 7, "id": 1}).encode()
    good, _ = judge_records(records(spark, [value]), "json", "Timestamp STRING, value INT, id INT")
    assert good.columns == [
        *("topic", "partition", "offset", "record_timestamp", "key", "record_value", "headers"),
        *("Timestamp", "value", "id"),
    ]
    [row] = good.collect()
    assert (row["Timestamp"], row["value"], bytes(row["record_value"])) == ("then", 7, value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (None, "needs a schema"),
        ("id BIGNUM", "cannot be read"),
        ("BIGINT", "has no names"),
        ("id INT, ID INT", "id more than once"),
        ("key INT, record_key INT", "record_key, which is needed"),
    ],
)
def test_a_schema_that_cannot_be_is_told(spark: SparkSession, schema: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        judge_records(records(spark, [b"{}"]), "json", schema)
