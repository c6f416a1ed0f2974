"""What a Kafka sink cannot take is said before anything is written, in one line that says what to do (F1)."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from gapless.errors import ExitCode, Unreachable, UsageError
from gapless.pipeline.sinks.kafka import KafkaSink
from gapless.pipeline.sinks.kafka.markers import Marker, marker_prefix
from gapless.pipeline.sinks.kafka.rows import check_columns
from gapless.pipeline.sinks.port import SinkRefused
from tests.pipeline.sinks.kafka.helpers import new_topic


def schema(**columns: str) -> StructType:
    kinds = {
        "string": "string",
        "binary": "binary",
        "int": "integer",
        "long": "long",
        "timestamp": "timestamp",
        "double": "double",
    }
    fields = [
        {"name": name, "type": kinds[kind], "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ({"key": "string", "amount": "double"}, "out", r"no column `value`, only `key`, `amount`.*to_json"),
        ({"value": "double"}, "out", "`value` must be binary or string, not double: cast it"),
        ({"value": "string", "key": "long"}, "out", "`key` must be binary or string, not bigint"),
        ({"value": "string", "partition": "long"}, "out", "`partition` must be int, not bigint"),
        ({"value": "string", "headers": "string"}, "out", "`headers` must be array<struct<key"),
        ({"value": "string", "timestamp": "long"}, "out", "`timestamp` must be timestamp"),
        ({"value": "string", "amount": "long"}, "out", "`amount` could be.*leave it out"),
        ({"value": "string"}, None, "nothing says which topic"),
        ({"value": "string", "topic": "binary"}, None, "`topic` must be string"),
    ],
)
def test_rows_that_are_no_records(columns: dict[str, str], topic: str | None, message: str) -> None:
    with pytest.raises(SinkRefused, match=message) as refused:
        check_columns(schema(**columns), topic)
    assert "\n" not in str(refused.value)


def test_rows_that_are(bootstrap: str) -> None:
    """Also as the source gives them: offsets are not written, they come with writing."""
    columns = {"key": "binary", "value": "binary", "topic": "string", "partition": "int", "offset": "long"}
    KafkaSink(bootstrap).check(schema(**columns, timestamp="timestamp", timestampType="int"))


def test_a_cluster_that_cannot_take_them(output: str) -> None:
    rows = schema(value="string")
    topic = new_topic(output)
    KafkaSink(output, topic).check(rows)
    with pytest.raises(SinkRefused, match="has no topic not-there: make it first"):
        KafkaSink(output, "not-there").check(rows)
    with pytest.raises(SinkRefused, match=r"transaction_timeout_ms is 1000000.* allows 900000"):
        KafkaSink(output, topic, transaction_timeout_ms=1_000_000).check(rows)


def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.pipeline.sinks.kafka.cluster._REQUEST_S", 1.0)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 does not answer") as away:
        KafkaSink("127.0.0.1:1", "out").check(schema(value="string"))
    assert away.value.exit_code is ExitCode.UNREACHABLE


def test_settings_that_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"transactional\.id cannot be set"):
        KafkaSink("127.0.0.1:1", "out", properties={"transactional.id": "mine"})
    with pytest.raises(SinkRefused, match="tasks must be 1 or more"):
        KafkaSink("127.0.0.1:1", "out", tasks=0)
    with pytest.raises(SinkRefused, match="transaction_timeout_ms must be"):
        KafkaSink("127.0.0.1:1", "out", transaction_timeout_ms=5)
    with pytest.raises(UsageError, match="cannot name a pipeline"):
        marker_prefix("with.dots", "out")


def test_an_offset_that_a_tool_has_moved_says_nothing_about_who_wrote() -> None:
    marker = Marker(17, "0123456789abcdef", 4, "fedcba9876543210", 1_700_000_000_000)
    assert Marker.of(17, marker.metadata) == marker
    for metadata in (None, "", "{", "[]", '{"batch": []}', "17"):
        assert Marker.of(17, metadata) == Marker(17, "", -1, "", 0)
