"""What cannot be repeated is refused before it runs, and what can is not (C8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from gapless.pipeline.plans import UnrepeatablePlan, fingerprint, refuse_unrepeatable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Transform = Callable[[DataFrame], DataFrame]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SCHEMA = "id BIGINT, name STRING, amount DOUBLE, at TIMESTAMP"


def batch_of(session: SparkSession, rows: int = 3) -> DataFrame:
    """Rows that Spark knows as little about as about those of a micro-batch."""
    data = session.sparkContext.parallelize([(number, "n", 1.5, None) for number in range(rows)], 2)
    return session.createDataFrame(data, SCHEMA)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    session.range(3).createOrReplaceTempView("numbers")
    static = session.createDataFrame(
        session.sparkContext.parallelize([(1, "x")], 1), "id BIGINT, label STRING"
    )
    static.createOrReplaceTempView("labels")
    yield session
    session.catalog.dropTempView("labels")


@pytest.fixture(scope="module")
def batch(session: SparkSession) -> DataFrame:
    batch = batch_of(session)
    batch.createOrReplaceTempView("records")
    return batch


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, upper(name) AS name FROM records WHERE amount > 1",
        "SELECT name, count(*), sum(id), avg(amount), min(at), max(id) FROM records GROUP BY name",
        "SELECT DISTINCT name FROM records",
        "SELECT name FROM records UNION ALL SELECT name FROM records",
        "SELECT a.id FROM records a JOIN records b ON a.id = b.id",
        "SELECT * FROM records WHERE id > (SELECT avg(id) FROM records)",
        "SELECT * FROM records r WHERE EXISTS (SELECT 1 FROM records o WHERE o.id = r.id)",
        "SELECT id, v.label FROM records JOIN (VALUES (1, 'one')) AS v(number, label) ON number = id",
        "SELECT id, part FROM records LATERAL VIEW explode(split(name, ',')) AS part",
        "SELECT name, numbers.id FROM records CROSS JOIN numbers",
        "WITH known AS (SELECT * FROM records WHERE id > 1) SELECT * FROM known a JOIN known b USING (id)",
        "SELECT id, rank() OVER (PARTITION BY name ORDER BY id) AS place FROM records",
        "SELECT id, sum(id) OVER (PARTITION BY name) AS total FROM records",
        "SELECT id, sum(id) OVER (PARTITION BY name ORDER BY id) AS so_far FROM records",
        "SELECT id, current_timezone(), date_trunc('hour', at) FROM records ORDER BY id",
        "SELECT id, date_add(at, 1), unix_timestamp(at) FROM records",
    ],
)
def test_what_depends_on_the_batch_alone_is_allowed(
    session: SparkSession, batch: DataFrame, sql: str
) -> None:
    refuse_unrepeatable(session.sql(sql), batch)


CHANCE = "gives another result when the batch is repeated"
TIME = "is another time when the batch is repeated"
ORDER = "depends on the order of rows"
ELSEWHERE = "reads something besides the batch"


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        *((f"SELECT id, {call} FROM records", CHANCE) for call in ("rand()", "rand(7)", "uuid()", "randn()")),
        ("SELECT id, shuffle(array(1, 2)) FROM records", CHANCE),
        ("SELECT id, monotonically_increasing_id() FROM records", CHANCE),
        ("SELECT id, spark_partition_id() FROM records", CHANCE),
        ("SELECT * FROM records WHERE rand() < 0.5", CHANCE),
        ("SELECT name, count(*) FROM records GROUP BY name HAVING sum(id) > rand() * 2", CHANCE),
        *(
            (f"SELECT id, {call} FROM records", TIME)
            for call in (
                "current_timestamp()",
                "now()",
                "current_date()",
                "localtimestamp()",
                "unix_timestamp()",
            )
        ),
        ("SELECT * FROM records WHERE at < current_timestamp() - INTERVAL 1 HOUR", TIME),
        ("WITH late AS (SELECT *, now() AS seen FROM records) SELECT * FROM late", TIME),
        ("SELECT * FROM records JOIN labels USING (id)", ELSEWHERE),
        ("SELECT * FROM records LEFT ANTI JOIN labels USING (id)", ELSEWHERE),
        ("SELECT * FROM records WHERE id > (SELECT max(id) FROM labels)", ELSEWHERE),
        ("SELECT * FROM records WHERE id IN (SELECT id FROM labels)", ELSEWHERE),
        ("SELECT id, name FROM records UNION ALL SELECT id, label FROM labels", ELSEWHERE),
        ("WITH l AS (SELECT * FROM labels) SELECT * FROM records JOIN l USING (id)", ELSEWHERE),
        ("SELECT id, (SELECT rand()) FROM records", CHANCE),
        *(
            (f"SELECT name, {call} FROM records GROUP BY name", ORDER)
            for call in (
                *("collect_list(id)", "collect_set(id)", "array_agg(id)", "first(id)", "last(id)"),
                *("any_value(id)", "listagg(name)", "max_by(id, at)", "min_by(id, at)", "mode(id)"),
                *("approx_percentile(id, 0.5)", "histogram_numeric(id, 3)"),
            )
        ),
        *(
            (f"SELECT id, {call} OVER (PARTITION BY name ORDER BY at) FROM records", ORDER)
            for call in (
                "row_number()",
                "ntile(2)",
                "lag(id)",
                "lead(id)",
                "nth_value(id, 2)",
                "first_value(id)",
            )
        ),
        (
            "SELECT id, sum(id) OVER (ORDER BY at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM records",
            ORDER,
        ),
        ("SELECT * FROM records LIMIT 2", ORDER),
        ("SELECT * FROM records ORDER BY at OFFSET 2", ORDER),
        ("SELECT * FROM records TABLESAMPLE (50 PERCENT)", ORDER),
    ],
)
def test_what_may_differ_when_repeated_is_refused(
    session: SparkSession, batch: DataFrame, sql: str, why: str
) -> None:
    with pytest.raises(UnrepeatablePlan, match=f"{why}.*stage = true"):
        refuse_unrepeatable(session.sql(sql), batch)


def test_the_refusal_names_what_it_means_without_spark_s_numbers(
    session: SparkSession, batch: DataFrame
) -> None:
    with pytest.raises(UnrepeatablePlan) as refused:
        refuse_unrepeatable(session.sql("SELECT collect_list(name) FROM records"), batch)
    assert str(refused.value).startswith("collect_list(name) depends on the order of rows")
    with pytest.raises(UnrepeatablePlan) as refused:
        refuse_unrepeatable(session.sql("SELECT * FROM records JOIN labels USING (id)"), batch)
    assert "#" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_dropping_duplicates_is_allowed_only_where_they_are_equal(batch: DataFrame) -> None:
    refuse_unrepeatable(batch.dropDuplicates(), batch)
    with pytest.raises(UnrepeatablePlan, match="Deduplicate"):
        refuse_unrepeatable(batch.dropDuplicates(["name"]), batch)


def test_functions_in_python_are_believed(batch: DataFrame) -> None:
    """Nobody can look into them; who knows that one is by chance says so to Spark."""
    from pyspark.sql.functions import udf

    shout = udf(lambda name: name.upper(), "string")
    refuse_unrepeatable(batch.select(shout("name")), batch)
    refuse_unrepeatable(batch.mapInArrow(lambda batches: batches, batch.schema), batch)
    with pytest.raises(UnrepeatablePlan, match=CHANCE):
        refuse_unrepeatable(batch.select(shout.asNondeterministic()("name")), batch)


def test_another_batch_is_something_else(session: SparkSession, batch: DataFrame) -> None:
    with pytest.raises(UnrepeatablePlan, match=ELSEWHERE):
        refuse_unrepeatable(batch.union(batch_of(session)), batch)


TRANSFORMS: dict[str, Transform] = {
    "all": lambda rows: rows,
    "some": lambda rows: rows.where("id > 1"),
    "fewer": lambda rows: rows.where("id > 2"),
    "columns": lambda rows: rows.select("id", "name"),
    "named": lambda rows: rows.selectExpr("id", "name AS label"),
    "counted": lambda rows: rows.groupBy("name").count(),
    "summed": lambda rows: rows.groupBy("name").sum("id"),
    "subquery": lambda rows: rows.sparkSession.sql(
        "SELECT id FROM {rows} WHERE id > (SELECT avg(id) FROM {rows})", rows=rows
    ),
    "with": lambda rows: rows.sparkSession.sql(
        "WITH n AS (SELECT name, max(id) AS id FROM {rows} GROUP BY name) SELECT id FROM n NATURAL JOIN n m",
        rows=rows,
    ),
    "python": lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema),
    "joined": lambda rows: rows.join(rows.select("id").distinct(), "id"),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_fingerprint_is_the_same_for_every_batch_and_session(spark: SparkSession, name: str) -> None:
    first, second = spark.newSession(), spark.newSession()
    transform = TRANSFORMS[name]
    expected = fingerprint(transform(batch_of(first)))
    assert fingerprint(transform(batch_of(first, rows=50))) == expected
    assert fingerprint(transform(batch_of(second))) == expected


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_fingerprint_does_not_tell_whether_rows_are_kept(session: SparkSession, name: str) -> None:
    """Several sinks keep a batch's rows; Spark plans that anew each time."""
    rows = TRANSFORMS[name](batch_of(session))
    expected = fingerprint(rows)
    kept = rows.persist()
    assert fingerprint(kept.select("*")) == expected
    kept.unpersist()


def test_a_fingerprint_tells_transforms_apart(batch: DataFrame) -> None:
    found = {name: fingerprint(transform(batch)) for name, transform in TRANSFORMS.items()}
    assert len(set(found.values())) == len(TRANSFORMS), found


def test_a_fingerprint_tells_apart_what_changes_the_rows_besides(spark: SparkSession) -> None:
    session = spark.newSession()
    expected = fingerprint(batch_of(session))
    assert fingerprint(batch_of(session), "version 2 of a function") != expected
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    assert fingerprint(batch_of(session)) != expected
