"""What a sink holds, as a DataFrame: a Delta table, Parquet files, a PostgreSQL table, another topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gapless.audit.carried import Sink
from gapless.audit.failing import mistakes, spark_errors
from gapless.audit.naming import Taken
from gapless.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gapless.audit.cluster import Cluster
    from gapless.audit.reading import Reader

KINDS = ("delta", "parquet", "postgres", "kafka")
_DELETES = ("DELETE", "TRUNCATE")
# Where a record is in another topic says nothing of where it was in the first.
ITS_OWN = ("topic", "partition", "offset")
_SAME_IN_JAVA = ("user", "password", "sslmode", "sslrootcert")


class SinkSpec(NamedTuple):
    """A sink by its kind and address."""

    kind: str
    where: str
    table: str | None = None

    @classmethod
    def parse(cls, text: str) -> SinkSpec:
        """`delta:PATH`, `parquet:PATH`, `kafka:TOPIC` or `postgres:URL#TABLE`."""
        kind, _, where = text.partition(":")
        if kind not in KINDS or not where:
            raise UsageError(
                f"{text!r} names no sink: use delta:PATH, parquet:PATH, kafka:TOPIC or postgres:URL#TABLE"
            )
        if kind != "postgres":
            return cls(kind, where)
        url, _, table = where.rpartition("#")
        if not url or not table:
            raise UsageError("a PostgreSQL sink needs its table: postgres:postgresql://host/database#TABLE")
        return cls(kind, url, table)

    def __str__(self) -> str:
        """Without what may be a password."""
        return f"{self.kind}:{self.table or self.where}"


def sink_of(spec: SinkSpec, spark: SparkSession, cluster: Cluster, reader: Reader) -> Sink:
    """All rows of a sink, committed ones if it is a topic. Raises with the reason if there is none."""
    if spec.kind == "kafka":
        # What a pipeline has carried is committed, but can be behind another's open transaction.
        ends = cluster.settled_ends(spec.where)
        return Sink(
            str(spec),
            reader.records(spec.where, ends).drop(*ITS_OWN),
            begins_ms=reader.begins_ms(spec.where, ends),
            taken=Taken(sum(at.earliest for at in ends.values())),
            is_open=any(at.high > at.end for at in ends.values()),
            with_aborted=lambda: reader.records(spec.where, ends, aborted=True).drop(*ITS_OWN),
            empty=lambda: reader.empty(spec.where, ends) if cluster.is_compacted(spec.where) else 0,
        )
    with reading_errors(spec):
        if spec.kind == "postgres":
            return Sink(str(spec), spark.read.format("jdbc").options(**jdbc_options(spec)).load())
        rows = spark.read.format(spec.kind).load(spec.where)
        deleted = deleted_from(spec, spark) if spec.kind == "delta" else None
        return Sink(str(spec), rows, is_deleted_from=deleted is not None, taken=deleted)


@contextmanager
def reading_errors(spec: SinkSpec) -> Iterator[None]:
    """Whatever keeps a sink from being read, in one line."""
    with spark_errors(str(spec)), mistakes(f"cannot read {spec}"):
        yield


def deleted_from(spec: SinkSpec, spark: SparkSession) -> Taken | None:
    """How many rows were deleted from a Delta table, as far back as it remembers. None: nobody did."""
    from delta.tables import DeltaTable
    from pyspark.sql import functions as sf

    history = DeltaTable.forPath(spark, spec.where).history()
    rows = sf.when(sf.col("operation").isin(*_DELETES), sf.col("operationMetrics")["numDeletedRows"])
    found = history.agg(
        sf.count_if(sf.col("operation").isin(*_DELETES)).alias("deletes"),
        sf.count(rows).alias("told"),
        sf.coalesce(sf.sum(rows.cast("long")), sf.lit(0)).alias("rows"),
        sf.min("version").alias("oldest"),
    ).collect()[0]
    taken = Taken(found.rows, is_all=found.told == found.deletes and found.oldest == 0)
    return None if not found.deletes or taken == Taken(0) else taken


def jdbc_options(spec: SinkSpec) -> Mapping[str, str]:
    """libpq's way to name a database, in the words of Java's driver."""
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise UsageError("psycopg is not installed: run: pip install 'gapless[postgres]'") from None
    try:
        named = {name: str(value) for name, value in conninfo_to_dict(spec.where).items()}
    except ProgrammingError as error:
        raise UsageError(f"this is no address of PostgreSQL: {str(error).strip()}") from None
    host, port = named.pop("host", "localhost"), named.pop("port", "5432")
    database = named.pop("dbname", named.get("user", ""))
    own = {name: value for name, value in named.items() if name in _SAME_IN_JAVA}
    return {
        "url": f"jdbc:postgresql://{host}:{port}/{database}",
        "driver": "org.postgresql.Driver",
        "dbtable": str(spec.table),
        # As a stream and not all at once.
        "fetchsize": "10000",
        **own,
    }
