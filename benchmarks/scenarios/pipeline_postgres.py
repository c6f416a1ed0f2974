"""The exactly-once PostgreSQL sink against Spark's JDBC writer, which may repeat.

    python -m benchmarks.scenarios.pipeline_postgres [--rows N] [--rounds N] [--quick] [--out FILE]

The same Spark session writes the same rows into an empty table; rounds alternate. The rows are those of a
topic as a pipeline with several sinks has them: read before, and kept in memory. The JDBC writer runs as it
comes, with a batch size of 10,000, and with that and the driver's rewriting of inserts, which is the fastest
it can do. The server syncs to disk. CPU is that of Spark with its Python workers, and that of the server.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.report import number
from benchmarks.statistics import at_least
from gapless.errors import GaplessError
from gapless.pipeline import spark_session
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.port import Batch, SinkContext
from gapless.pipeline.sinks.postgres import PostgresSink
from gapless.testing.broker import EmbeddedBroker
from gapless.testing.postgres import USER, Postgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET = at_least(1.0)
OURS = "exactly-once"
JDBC, JDBC_LARGE, JDBC_REWRITING = "JDBC", "JDBC, batchsize 10,000", "JDBC, rewriting inserts"
CONTENDERS = (JDBC, JDBC_LARGE, JDBC_REWRITING, OURS)
PARTITIONS = 2
# With id, amount and at about a hundred bytes.
_VALUE_BYTES = 76
_TICKS_PER_S = 100
_TOPIC = "rows"
_DURABLE = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB", "max_wal_size": "4GB"}
_TABLE = "CREATE TABLE out (id bigint, amount float8, at timestamptz, value text)"
_MODULE = "benchmarks.scenarios.pipeline_postgres"


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one contender, a number for each round."""

    contender: str
    rates: list[float] = field(default_factory=list)
    spark_cpu_s_per_million: list[float] = field(default_factory=list)
    server_cpu_s_per_million: list[float] = field(default_factory=list)


class Bench:
    """A server, a Spark session, and rows in its memory."""

    def __init__(self, server: Postgres, spark: SparkSession, rows: DataFrame, folder: Path) -> None:
        self._server = server
        self._spark = spark
        self._folder = folder
        self._runs = 0
        self._rows = rows.cache()
        self._count = rows.count()

    def run(self, contender: str) -> tuple[float, float, float]:
        """Everything once: seconds, CPU seconds of Spark, CPU seconds of the server."""
        self._runs += 1
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS out")
            connection.execute(_TABLE)
            connection.execute("CHECKPOINT")
        write = self._prepared(contender)
        spark_pid = self._spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        spark_before, server_before = _tree_cpu_s(spark_pid), _tree_cpu_s(self._server.pid)
        began_s = time.perf_counter()
        write()
        took_s = time.perf_counter() - began_s
        spark_cpu_s = _tree_cpu_s(spark_pid) - spark_before
        server_cpu_s = _tree_cpu_s(self._server.pid) - server_before
        self._check(contender)
        return took_s, spark_cpu_s, server_cpu_s

    def _prepared(self, contender: str) -> Callable[[], object]:
        if contender == OURS:
            sink = PostgresSink(self._server.dsn, "out", create=False)
            folder = CheckpointFolder(self._spark, self._folder / str(self._runs))
            sink.open(SinkContext(f"bench-{self._runs}", "out", folder, self._spark))
            return lambda: sink.write(Batch(0, self._rows))
        address = f"jdbc:{self._server.dsn.replace(f'{USER}@', '')}?user={USER}"
        options = {"dbtable": "out", "driver": "org.postgresql.Driver"}
        if contender != JDBC:
            options["batchsize"] = "10000"
        if contender == JDBC_REWRITING:
            address += "&reWriteBatchedInserts=true"
        writer = self._rows.write.format("jdbc").options(url=address, **options).mode("append")
        return writer.save

    def _check(self, contender: str) -> None:
        with psycopg.connect(self._server.dsn) as connection:
            found: Any = connection.execute("SELECT count(*), count(DISTINCT id) FROM out").fetchone()
        if found != (self._count, self._count):
            raise GaplessError(f"{contender} wrote {found[0]} rows, {found[1]} of {self._count} ids")


def _rows(spark: SparkSession, bootstrap: str, count: int) -> DataFrame:
    """A topic as a batch of a stream reads it, so that each task's rows are those of one partition."""
    ends = {partition: len(range(partition, count, PARTITIONS)) for partition in range(PARTITIONS)}
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", _TOPIC)
        .option("startingOffsets", json.dumps({_TOPIC: dict.fromkeys(ends, 0)}))
        .option("endingOffsets", json.dumps({_TOPIC: ends}))
    )
    return records.load().selectExpr(
        f"offset * {PARTITIONS} + partition AS id",
        "offset / 7 AS amount",
        "timestamp AS at",
        "string(value) AS value",
    )


def _fill(bootstrap: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    admin.create_topics([NewTopic(_TOPIC, PARTITIONS, 1)])[_TOPIC].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 3})
    for index in range(count):
        producer.produce(_TOPIC, f"{index:x}".rjust(_VALUE_BYTES, "x"), partition=index % PARTITIONS)
        if index % 50_000 == 0:
            producer.flush()
    producer.flush()


def _tree_cpu_s(root: int) -> float:
    """CPU seconds of a process, of those it has started, and of those of them that have ended."""
    stats: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stats[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
    ticks, wanted = 0, [root]
    while wanted:
        process = wanted.pop()
        ticks += sum(map(int, stats[process][11:15]))
        wanted += [pid for pid, stat in stats.items() if int(stat[1]) == process]
    return ticks / _TICKS_PER_S


def measure(count: int, rounds: int, say: Callable[[str], None]) -> list[Measured]:
    """All contenders in turn, each once to warm up."""
    found = {contender: Measured(contender) for contender in CONTENDERS}
    with (
        EmbeddedBroker() as broker,
        Postgres(_DURABLE) as server,
        tempfile.TemporaryDirectory(prefix="gapless-postgres-") as folder,
    ):
        _fill(broker.bootstrap, count)
        # Without the first, a batch reads a topic in an older way than a stream does.
        settings = {"spark.sql.sources.useV1SourceList": "", "spark.sql.adaptive.enabled": "false"}
        spark = spark_session("gapless-bench", config=settings)
        bench = Bench(server, spark, _rows(spark, broker.bootstrap, count), Path(folder))
        for contender in CONTENDERS:
            bench.run(contender)
        for round_number in range(rounds):
            for contender in CONTENDERS if round_number % 2 == 0 else reversed(CONTENDERS):
                took_s, spark_cpu_s, server_cpu_s = bench.run(contender)
                found[contender].rates.append(count / took_s)
                found[contender].spark_cpu_s_per_million.append(spark_cpu_s / count * 1e6)
                found[contender].server_cpu_s_per_million.append(server_cpu_s / count * 1e6)
                say(f"{contender} · {took_s:.2f} s · CPU {spark_cpu_s:.1f} s + {server_cpu_s:.1f} s")
        spark.stop()
    return list(found.values())


def table(count: int, found: Sequence[Measured]) -> Table:
    title = f"Rows into PostgreSQL: {count:,} × 100 B, rows/s, median (ratio: ours to it, with spread)"
    shown = Table(title=title, title_justify="left")
    for heading in ("writer", "rows/s", "ratio", "target", "", "CPU s/million: Spark", "server"):
        shown.add_column(heading, justify="right")
    ours = next(each for each in found if each.contender == OURS)
    for each in found:
        ratios = [mine / its for mine, its in zip(ours.rates, each.rates, strict=True)]
        compared = each is not ours
        shown.add_row(
            each.contender,
            number(median(each.rates)),
            f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if compared else "",
            str(TARGET) if compared else "",
            ("ok" if TARGET.met_by(median(ratios)) else "short") if compared else "",
            f"{median(each.spark_cpu_s_per_million):.1f}",
            f"{median(each.server_cpu_s_per_million):.1f}",
        )
    return shown


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    arguments = parser.parse_args(argv)
    count = arguments.rows or (5_000 if arguments.quick else 500_000)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    found = measure(count, rounds, lambda line: print(line, file=sys.stderr))
    Console(width=None if sys.stdout.isatty() else 140).print(table(count, found))
    if arguments.out is not None:
        described = {
            "machine": machine.describe(with_peer=False),
            "rows": count,
            "postgres_sink": [asdict(each) for each in found],
        }
        arguments.out.write_text(json.dumps(described, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
