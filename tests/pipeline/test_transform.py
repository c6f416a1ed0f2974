"""A transform is SQL, a file of it or a function; what is wrong in it is told with its line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.pipeline.definition import Definition
from gapless.pipeline.transform import Transform, WrongTransform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HEAD = """\
name = "p"
checkpoint = "checkpoint"
[source]
bootstrap = "127.0.0.1:9092"
topics = ["orders"]
[[sinks]]
type = "kafka"
topic = "out"
[transform]
"""


@pytest.fixture
def records(spark: SparkSession) -> DataFrame:
    return spark.range(5).selectExpr("id", "id * 2 AS amount")


def transform(settings: str, folder: Path) -> Transform:
    return Transform(Definition.parse(HEAD + settings, "orders.toml", folder))


def refused(settings: str, folder: Path, records: DataFrame) -> str:
    with pytest.raises(WrongTransform) as wrong:
        transform(settings, folder).apply(records)
    assert "\n" not in str(wrong.value)
    return str(wrong.value)


def values(rows: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in rows.collect())


def test_without_a_transform_rows_pass_as_they_are(records: DataFrame, tmp_path: Path) -> None:
    plain = transform("stage = true", tmp_path)
    assert plain.apply(records) is records
    assert plain.version == ""


def test_sql_sees_the_batch_as_records_and_each_batch_its_own(records: DataFrame, tmp_path: Path) -> None:
    doubled = transform("sql = 'SELECT id, amount + 1 AS more FROM records WHERE id > 2;'", tmp_path)
    first = doubled.apply(records)
    second = doubled.apply(records.where("id = 4"))
    assert values(first) == [(3, 7), (4, 9)]  # though the view means something else by now
    assert values(second) == [(4, 9)]
    assert first.columns == ["id", "more"]


def test_views_of_two_pipelines_do_not_collide(spark: SparkSession, tmp_path: Path) -> None:
    count = transform("sql = 'SELECT count(*) AS n FROM records'", tmp_path)
    one, other = spark.newSession(), spark.newSession()
    rows_of_one = one.range(3)
    count.apply(other.range(7))
    assert values(count.apply(rows_of_one)) == [(3,)]
    assert values(other.sql("SELECT count(*) FROM records")) == [(7,)]


def test_a_file_of_sql_is_beside_the_definition(records: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "clean.sql").write_text("-- what is left\nSELECT id FROM records WHERE amount = 4\n")
    clean = transform("file = 'clean.sql'", tmp_path)
    assert values(clean.apply(records)) == [(2,)]
    version = clean.version
    (tmp_path / "clean.sql").write_text("SELECT id FROM records WHERE amount = 6\n")
    assert transform("file = 'clean.sql'", tmp_path).version != version


@pytest.mark.parametrize(
    ("settings", "line", "words"),
    [
        ("sql = 'SELECT nope FROM records'", 10, "`nope` cannot be resolved"),
        ("sql = '''\nSELECT id,\n  amuont\nFROM records'''", 12, "Did you mean"),
        ("sql = 'SELECT id FORM records WHERE'", 10, "Syntax error at or near"),
        ("sql = '''SELECT id\nFROM orders'''", 11, "`orders` cannot be found"),
        ("sql = 'SELECT sum(id), amount FROM records'", 10, "GROUP BY"),
        ("sql = 'DROP TABLE records'", 10, "must be a query (SELECT ... FROM records), not DROP"),
        ("sql = 'CREATE VIEW x AS SELECT 1'", 10, "must be a query (SELECT ... FROM records), not CREATE"),
        ("sql = 'INSERT INTO t SELECT * FROM records'", 10, "not INSERT"),
        ("sql = 'SET spark.x = 1'", 10, "not SET"),
        ("sql = 'WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a'", 10, "Syntax error"),
        ("sql = 'SELECT 1; DROP TABLE t'", 10, "Syntax error"),
    ],
)
def test_what_spark_says_of_sql_is_one_line_that_points_at_it(
    settings: str, line: int, words: str, records: DataFrame, tmp_path: Path
) -> None:
    said = refused(settings, tmp_path, records)
    assert said.startswith(f"orders.toml:{line}: ")
    assert words in said
    assert "SQLSTATE" not in said
    assert "pos" not in said


def test_a_mistake_in_a_file_of_sql_points_into_that_file(records: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "clean.sql").write_text("SELECT id\nFROM records\nWHERE nope = 1")
    assert refused("file = 'clean.sql'", tmp_path, records).startswith(f"{tmp_path}/clean.sql:3: ")
    (tmp_path / "clean.sql").write_text(" \n")
    assert refused("file = 'clean.sql'", tmp_path, records).startswith("orders.toml:10: ")
    missing = refused("file = 'no.sql'", tmp_path, records)
    assert missing == f"orders.toml:10: cannot read {tmp_path}/no.sql: No such file or directory"


FUNCTIONS = """\
from pyspark.sql import functions as f
import gapless_test_helper
from gapless_test_helper import PLUS

LIMIT = 3
udf = f.udf(lambda number: number + PLUS + helping(), "long")

def helping():
    return gapless_test_helper.more()

def clean(rows):
    return rows.where(f.col("id") >= LIMIT).select("id", udf("id").alias("more"))

def wrong_column(rows):
    return rows.select("nope")

def raising(rows):
    rows = rows.where("id > 1")
    raise KeyError("what")

def counting(rows):
    return rows.count()

def two(rows, more):
    return rows
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gapless_test_orders.py").write_text(FUNCTIONS)
    (tmp_path / "gapless_test_helper.py").write_text("PLUS = 100\ndef more():\n    return 1000\n")
    return tmp_path


def test_a_function_runs_with_its_module_also_in_workers(records: DataFrame, folder: Path) -> None:
    clean = transform("function = 'gapless_test_orders:clean'", folder)
    assert values(clean.apply(records)) == [(3, 1103), (4, 1104)]


@pytest.mark.usefixtures("spark")
def test_a_function_is_another_version_when_its_module_or_what_that_imports_changes(folder: Path) -> None:
    settings = "function = 'gapless_test_orders:clean'"
    versions = {transform(settings, folder).version}
    assert versions == {transform(settings, folder).version}
    for name in ("gapless_test_orders.py", "gapless_test_helper.py"):
        (folder / name).write_text((folder / name).read_text() + "\n# another\n")
        versions.add(transform(settings, folder).version)
    assert len(versions) == 3


def test_modules_of_the_same_name_in_two_folders_are_two(records: DataFrame, tmp_path: Path) -> None:
    counts = []
    for name, limit in (("one", 1), ("other", 4)):
        (tmp_path / name).mkdir()
        code = f"def clean(rows):\n    return rows.where('id >= {limit}')\n"
        (tmp_path / name / "gapless_test_same.py").write_text(code)
        clean = transform("function = 'gapless_test_same:clean'", tmp_path / name)
        counts.append(clean.apply(records).count())
    assert counts == [4, 1]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("gapless_no_such:f", "there is no module gapless_no_such, neither in "),
        ("gapless_test_orders:g", "has no function 'g'; it has udf, helping, clean, wrong_column, raising"),
        ("gapless_test_orders:LIMIT", "gapless_test_orders:LIMIT is no function, but int"),
        ("gapless_test_orders:two", "must take one argument, the batch's rows"),
        ("gapless_test_orders:wrong_column", "failed (gapless_test_orders.py:15): A column"),
        ("gapless_test_orders:raising", "raised KeyError (gapless_test_orders.py:19): 'what'"),
        ("gapless_test_orders:counting", "must return a DataFrame, not int"),
        ("gapless_test_broken:f", "cannot import gapless_test_broken: "),
        ("gapless_test_failing:f", "cannot import gapless_test_failing: ZeroDivisionError (gapless_test_fai"),
        ("gapless_test_lacking:f", "cannot import gapless_test_lacking: No module named 'gapless_not_there'"),
    ],
)
def test_what_is_wrong_with_a_function_is_one_line(
    function: str, words: str, folder: Path, records: DataFrame
) -> None:
    (folder / "gapless_test_broken.py").write_text("def f(:\n")
    (folder / "gapless_test_failing.py").write_text("\n1 / 0\n")
    (folder / "gapless_test_lacking.py").write_text("import gapless_not_there\n")
    said = refused(f"function = '{function}'", folder, records)
    assert said.startswith("orders.toml:10: ")
    assert words in said
