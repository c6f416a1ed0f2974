"""A check finds what would fail, before anything runs, and points at its line."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.errors import ExitCode, GaplessError
from gapless.pipeline.check import Finding, State, check, check_quickly, exit_code_of, refuse_early
from gapless.pipeline.definition import Definition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def define(bootstrap: str, topic: str, tmp_path: Path) -> Callable[..., Definition]:
    """A definition that is well but for what is added to it."""

    def make(more: str = "", source: str = "", sink: str = 'type = "parquet"\npath = "files"') -> Definition:
        text = f"""\
name = "checked"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
{source}
[[sinks]]
{sink}
{more}"""
        return Definition.parse(text, "orders.toml", tmp_path)

    return make


def failures(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(each.what, each.words) for each in findings if each.state is State.FAILED]


def test_what_is_well_is_told_step_by_step(
    spark: SparkSession, define: Callable[..., Definition], topic: str, tmp_path: Path
) -> None:
    told: list[Finding] = []
    definition = define(
        '[transform]\nsql = "SELECT CAST(value AS STRING) AS text, offset FROM records"\n'
        '[dead_letters]\ntype = "delta"\npath = "dead"'
    )
    found = check(definition, on_finding=told.append)
    assert found == told
    assert exit_code_of(found) is ExitCode.OK
    assert failures(found) == []
    assert [each.what for each in found] == [
        *("definition", "spark", "source", "transform", "sink parquet", "sink dead-letters")
    ]
    words = {each.what: each.words for each in found}
    assert words["definition"] == f"checked: {topic} → parquet (parquet), with dead letters"
    assert words["source"].endswith(": 2 partitions")
    assert words["transform"] == "text string, offset bigint"
    assert found[-1].state is State.NOTE  # bytes are never unreadable
    assert list(tmp_path.iterdir()) == []  # nothing was written
    assert spark.range(1).count() == 1  # the session that was there is still there


def test_a_checkpoint_of_another_pipeline_is_told(
    spark: SparkSession, define: Callable[..., Definition], tmp_path: Path
) -> None:
    note = tmp_path / "checkpoint" / "gapless" / "pipeline.json"
    note.parent.mkdir(parents=True)
    note.write_text('{"name": "bills"}')
    assert [what for what, _ in failures(check(define()))] == ["checkpoint"]
    (tmp_path / "checkpoint" / "commits").mkdir()
    (tmp_path / "checkpoint" / "commits" / "7").write_text("v1\n{}")
    note.write_text('{"name": "checked"}')
    [found] = [each for each in check(define()) if each.what == "checkpoint"]
    assert found.state is State.OK
    assert found.words.endswith("goes on after batch 7")
    note.write_text('{"name": "bills"}')
    findings = check(define())
    [(what, words)] = failures(findings)
    assert what == "checkpoint"
    assert "belongs to the pipeline 'bills'" in words
    assert exit_code_of(findings) is ExitCode.USAGE
    assert note.read_text() == '{"name": "bills"}'


def test_a_broker_that_is_away_is_told_within_seconds_and_spark_is_not_started(
    define: Callable[..., Definition], tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        text = f"""\
name = "checked"
checkpoint = "checkpoint"
[source]
bootstrap = "127.0.0.1:{port}"
topics = ["orders"]
[[sinks]]
type = "kafka"
topic = "out"
[transform]
sql = "SELECT nonsense"
"""
        found = check(Definition.parse(text, "orders.toml", tmp_path))
    assert [each.what for each in found if each.state is State.FAILED] == ["source", "sink kafka"]
    assert failures(found)[0][1].startswith(
        f"orders.toml:4: cannot reach a Kafka broker at 127.0.0.1:{port}: "
    )
    assert failures(found)[1][1].startswith("orders.toml:6: cannot reach")
    assert found[-1].state is State.SKIPPED
    assert exit_code_of(found) is ExitCode.UNREACHABLE
    with pytest.raises(GaplessError, match=r"orders.toml:4: cannot reach"):
        refuse_early(Definition.parse(text, "orders.toml", tmp_path))


def test_topics_that_do_not_exist_are_told_with_how_to_make_them(
    define: Callable[..., Definition], bootstrap: str, topic: str
) -> None:
    definition = define(sink='type = "kafka"\ntopic = "nowhere"')
    made_up = define(source=f"starting = {{ {topic} = {{ 7 = 0 }} }}")
    no_topic = (
        f"orders.toml:9: there is no topic nowhere at {bootstrap} "
        f"(make it: gapless topics create nowhere --bootstrap {bootstrap})"
    )
    assert failures(check_quickly(definition)) == [("sink kafka", no_topic)]
    assert failures(check_quickly(made_up)) == [
        ("source", f"orders.toml:6: `starting` names {topic}-7, which does not exist")
    ]


@pytest.mark.parametrize(
    ("transform", "line", "words"),
    [
        ("sql = 'SELECT nope FROM records'", 12, "`nope` cannot be resolved"),
        ("sql = '''\nSELECT offset\nFROM recrods'''", 14, "`recrods` cannot be found"),
        (
            "sql = 'SELECT value, rand() AS r FROM records'",
            12,
            "gives another result when the batch is repeated",
        ),
        ("sql = 'SELECT value, now() AS n FROM records'", 12, "is another time when the batch is repeated"),
        ("function = 'gapless_no_such_module:f'", 12, "there is no module"),
        ("file = 'nope.sql'", 12, "cannot read"),
    ],
)
def test_a_transform_that_cannot_work_is_told_with_its_line(
    spark: SparkSession,
    define: Callable[..., Definition],
    transform: str,
    line: int,
    words: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = check(define(f"\n[transform]\n{transform}"))
    assert capfd.readouterr().err == ""  # PySpark would log a page
    [(_, said)] = failures(found)
    assert said.startswith(f"orders.toml:{line}: ")
    assert words in said
    assert exit_code_of(found) is ExitCode.USAGE


def test_what_cannot_be_repeated_may_be_staged(
    spark: SparkSession, define: Callable[..., Definition]
) -> None:
    found = check(define("[transform]\nsql = 'SELECT value, rand() AS r FROM records'\nstage = true"))
    assert failures(found) == []
    assert any("staged" in each.words for each in found)


def test_a_group_by_is_told_to_see_one_batch_at_a_time(
    spark: SparkSession, define: Callable[..., Definition]
) -> None:
    found = check(define("[transform]\nsql = 'SELECT key, count(*) AS n FROM records GROUP BY key'"))
    assert failures(found) == []
    [note] = [each for each in found if each.state is State.NOTE]
    assert note.words == "GROUP BY, DISTINCT and aggregates see the rows of one micro-batch at a time"


def test_json_is_seen_with_its_schema_and_a_wrong_schema_is_told(
    spark: SparkSession, define: Callable[..., Definition]
) -> None:
    source = 'value = "json"\nschema = "id BIGINT, amount DOUBLE"'
    found = check(define("[transform]\nsql = 'SELECT id, amount * 2 AS twice FROM records'", source))
    assert failures(found) == []
    assert "id bigint, twice double" in [each.words for each in found]
    [(_, said)] = failures(check(define(source='value = "json"\nschema = "id BIGNUMBER"')))
    assert said.startswith("orders.toml:7: ")
    assert "BIGNUMBER" in said.upper()


def test_rows_that_a_sink_does_not_take_are_told(
    spark: SparkSession, define: Callable[..., Definition], topic: str, bootstrap: str
) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(f"{topic}-out", 1, 1)])[f"{topic}-out"].result()
    sink = f'type = "kafka"\ntopic = "{topic}-out"'
    assert failures(check(define(sink=sink))) == []
    grouped = define("[transform]\nsql = 'SELECT max(value) AS value FROM records GROUP BY key'", sink=sink)
    assert check(grouped)[-1].words == "takes these rows (shuffled)"
    by_one = check(define(sink=f"{sink}\ntasks = 1"))
    assert by_one[-1].words == "takes these rows, by 1 task (shuffled)"
    [(what, said)] = failures(check(define("[transform]\nsql = 'SELECT offset FROM records'", sink=sink)))
    assert what == "sink kafka"
    assert said.startswith("orders.toml:7: ")
    assert "value" in said


@pytest.mark.postgres
def test_a_database_that_is_away_is_told(define: Callable[..., Definition]) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/shop"
    found = check_quickly(define(sink=f'type = "postgres"\nurl = "{url}"\ntable = "orders"'))
    [(what, said)] = failures(found)
    assert what == "sink postgres"
    assert said.startswith("orders.toml:9: PostgreSQL at 127.0.0.1:1/shop: ")
    assert "secret" not in said
    assert exit_code_of(found) is ExitCode.UNREACHABLE
