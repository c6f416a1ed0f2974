"""Dedup by intervals against Spark's dropDuplicatesWithinWatermark on the same stream (claim F2).

    python -m benchmarks.scenarios.pipeline_dedup [--records N] [--sources N] [--rate-records N] [--rounds N]
                                                  [--quick] [--out FILE]

Both read the same topic of an embedded broker in micro-batches, know records by their identity headers, and
count what is left and its bytes. The records come from many sources in turn; at times a few hundred come
again, as after a producer's crash, and the count must be right. Spark keeps what it has seen in one of its
two state stores, in memory (its default) or in RocksDB (for what memory cannot hold); the rate is compared
with both. Its watermark is long enough to forget nothing meanwhile.

Rates are those of whole queries over `--rate-records`, rounds alternate, CPU is that of Spark with its Python
workers. Then `--records` are read once by each that can hold them, and what they keep on disk is compared:
Spark's folder of state with the last table of intervals.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.report import number
from benchmarks.scenarios.pipeline_kafka import _cpu_of_children as cpu_of_children
from benchmarks.statistics import at_least, at_most
from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, sequence_header, source_header
from gapless.errors import GaplessError
from gapless.pipeline import spark_session
from gapless.pipeline.dedup import IntervalDedup
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.identity import made_by, sequence_bytes
from gapless.pipeline.properties import client_properties
from gapless.pipeline.sections import Source
from gapless.pipeline.source import read_source
from gapless.testing.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATE_TARGET, STATE_TARGET = at_least(1.5), at_most(0.01)
PARTITIONS = 4
RECORD_BYTES = 100
REPEATED, REPEATED_EVERY = 200, 100_000
WATERMARK = "6 hours"
INTERVALS, IN_MEMORY, ROCKSDB = "intervals", "Spark, in memory", "Spark, RocksDB"
CONTENDERS = (INTERVALS, IN_MEMORY, ROCKSDB)
_STATE = "org.apache.spark.sql.execution.streaming.state"
_PROVIDERS = {
    INTERVALS: f"{_STATE}.HDFSBackedStateStoreProvider",
    IN_MEMORY: f"{_STATE}.HDFSBackedStateStoreProvider",
    ROCKSDB: f"{_STATE}.RocksDBStateStoreProvider",
}
_MODULE = "benchmarks.scenarios.pipeline_dedup"
_PATIENCE_S = 3_600


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is read for the rate, in batches of which size, how often; and how much for the state."""

    rate_records: int = 2_000_000
    batch_records: int = 500_000
    rounds: int = 3
    records: int = 10_000_000
    sources: int = 1_000


QUICK = Sizes(20_000, 10_000, 1, 40_000, 100)


@dataclass(frozen=True, slots=True)
class Rates:
    """A number per round for each contender."""

    records: int
    sources: int
    per_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in CONTENDERS})
    cpu_s_per_million: dict[str, list[float]] = field(
        default_factory=lambda: {name: [] for name in CONTENDERS}
    )

    def ratios(self, other: str) -> list[float]:
        """Within each round: the machine may have changed in between."""
        return [ours / theirs for ours, theirs in zip(self.per_s[INTERVALS], self.per_s[other], strict=True)]


@dataclass(frozen=True, slots=True)
class State:
    """What is on disk after all records."""

    records: int
    sources: int
    intervals_bytes: int
    """The last table, which is all that the next batch needs."""
    all_intervals_bytes: int
    """With the versions kept besides."""
    spark_bytes: int

    def ratio(self) -> float:
        return self.intervals_bytes / self.spark_bytes


class Filled:
    """A topic, and how many different records are in it."""

    def __init__(self, bootstrap: str, name: str, records: int, sources: int) -> None:
        self.name = name
        self.records = records
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 3})
        self._makers = [source_header(f"source-{each:05}", b"incarnat") for each in range(sources)]
        for index in range(records):
            self._send(index)
            if index % REPEATED_EVERY == REPEATED_EVERY - 1:
                for again in range(index - REPEATED, index):
                    self._send(again)
        self._producer.flush()

    def _send(self, index: int) -> None:
        turn, partition = divmod(index, PARTITIONS)
        sequence, source = divmod(turn, len(self._makers))
        headers: list[tuple[str, str | bytes | None]] = [
            (SOURCE_HEADER, self._makers[source]),
            (SEQUENCE_HEADER, sequence_header(sequence)),
        ]
        while True:
            try:
                self._producer.produce(self.name, b"x" * RECORD_BYTES, partition=partition, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.05)


class Bench:
    """A broker, a Spark session, and what is measured on them."""

    def __init__(self, bootstrap: str, spark: SparkSession, folder: Path, batch_records: int) -> None:
        self._bootstrap = bootstrap
        self._spark = spark
        self._folder = folder
        self._batch_records = batch_records
        self._runs = 0

    def read(self, topic: Filled, contender: str) -> tuple[float, float, Path]:
        """The topic once: seconds, CPU seconds of Spark, and the checkpoint."""
        self._runs += 1
        checkpoint = self._folder / f"run-{self._runs}"
        self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", _PROVIDERS[contender])
        left: list[tuple[int, int]] = []
        source = Source(self._bootstrap, [topic.name], max_records_per_batch=self._batch_records)
        stream = read_source(self._spark, source, client_properties())
        stream = stream if contender == INTERVALS else _within_watermark(stream)
        dedup = IntervalDedup(CheckpointFolder(self._spark, checkpoint)) if contender == INTERVALS else None

        def batch(rows: DataFrame, number: int) -> None:
            if dedup is None:
                left.append(_counted(rows))
            else:
                sifting = dedup.sift(rows, number)
                left.append(_counted(sifting.rows))
                sifting.settle()

        before, began_s = cpu_of_children(), time.perf_counter()
        query = (
            stream.writeStream.foreachBatch(batch)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(_PATIENCE_S):
            raise GaplessError(f"{contender} did not end within an hour")
        took_s = time.perf_counter() - began_s
        cpu = sum(used - before.get(pid, 0.0) for pid, used in cpu_of_children().items())
        records, size_bytes = (sum(column) for column in zip(*left, strict=True))
        if (records, size_bytes) != (topic.records, topic.records * RECORD_BYTES):
            raise GaplessError(f"{contender} left {records:,} records of {topic.records:,} different ones")
        return took_s, cpu, checkpoint


def _within_watermark(stream: DataFrame) -> DataFrame:
    """By the headers' bytes as they are, which is the least that Spark can be asked to keep."""
    known = stream.withColumn("made_by", made_by()).withColumn("sequence", sequence_bytes())
    timed = known.withWatermark("timestamp", WATERMARK)
    return timed.dropDuplicatesWithinWatermark(["topic", "partition", "made_by", "sequence"])


def _counted(rows: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as sf

    [row] = rows.agg(sf.count("*"), sf.coalesce(sf.sum(sf.length("value")), sf.lit(0))).collect()
    return int(row[0]), int(row[1])


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(sizes: Sizes, say: Callable[[str], None]) -> tuple[Rates, State]:
    """Rates by rounds, then what is kept."""
    config = {"spark.sql.adaptive.enabled": "false", "spark.driver.memory": "3g"}
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory(prefix="gapless-dedup-") as folder:
        spark = spark_session("gapless-bench", config=config)
        bench = Bench(broker.bootstrap, spark, Path(folder), sizes.batch_records)
        warm_up = Filled(broker.bootstrap, "warm-up", min(50_000, sizes.rate_records), sizes.sources)
        for contender in CONTENDERS:
            bench.read(warm_up, contender)
        rates = Rates(sizes.rate_records, sizes.sources)
        topic = Filled(broker.bootstrap, "rate", sizes.rate_records, sizes.sources)
        for round_number in range(sizes.rounds):
            for contender in CONTENDERS if round_number % 2 == 0 else CONTENDERS[::-1]:
                took_s, cpu, _ = bench.read(topic, contender)
                rates.per_s[contender].append(topic.records / took_s)
                rates.cpu_s_per_million[contender].append(cpu / topic.records * 1e6)
                say(f"{topic.records:,} records · {contender} · {took_s:.1f} s · CPU {cpu:.1f} s")
        topic = Filled(broker.bootstrap, "state", sizes.records, sizes.sources)
        checkpoints = {name: bench.read(topic, name)[2] for name in (INTERVALS, ROCKSDB)}
        spark.stop()
        tables = checkpoints[INTERVALS] / "gapless" / "dedup"
        last = max(tables.glob("*.parquet"), key=lambda path: int(path.stem))
        state = State(
            sizes.records,
            sizes.sources,
            last.stat().st_size,
            _size_bytes(tables),
            _size_bytes(checkpoints[ROCKSDB] / "state"),
        )
        say(f"{state.records:,} records · state {state.intervals_bytes:,} B against {state.spark_bytes:,} B")
    return rates, state


def tables(rates: Rates, state: State) -> Iterator[Table]:
    title = f"Dedup of {rates.records:,} records from {rates.sources:,} sources, median"
    shown = Table(title=title, title_justify="left")
    for heading in ("", "records/s", "CPU s/million", "intervals are", "target", ""):
        shown.add_column(heading, justify="right")
    for name in CONTENDERS:
        ratios = rates.ratios(name)
        met = "ok" if RATE_TARGET.met_by(median(ratios)) else "short"
        shown.add_row(
            name,
            number(median(rates.per_s[name])),
            f"{median(rates.cpu_s_per_million[name]):.1f}",
            *("", "", "")
            if name == INTERVALS
            else (f"{median(ratios):.2f} × ({min(ratios):.2f}–{max(ratios):.2f})", str(RATE_TARGET), met),
        )
    yield shown
    title = f"Kept on disk after {state.records:,} records from {state.sources:,} sources"
    shown = Table(title=title, title_justify="left")
    for heading in (INTERVALS, "with older versions", ROCKSDB, "ratio", "target", ""):
        shown.add_column(heading, justify="right")
    sizes = (state.intervals_bytes, state.all_intervals_bytes, state.spark_bytes)
    shown.add_row(
        *(f"{number(size / 1e6)} MB" for size in sizes),
        f"{state.ratio():.5f}",
        str(STATE_TARGET),
        "ok" if STATE_TARGET.met_by(state.ratio()) else "short",
    )
    yield shown


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, help="read once, for the state")
    parser.add_argument("--sources", type=int)
    parser.add_argument("--rate-records", type=int, help="read in every round, for the rate")
    parser.add_argument("--batch-records", type=int, help="of a micro-batch")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    arguments = parser.parse_args(argv)
    usual = QUICK if arguments.quick else Sizes()
    sizes = Sizes(**{name: getattr(arguments, name) or value for name, value in asdict(usual).items()})
    rates, state = measure(sizes, lambda line: print(line, file=sys.stderr))
    console = Console(width=None if sys.stdout.isatty() else 140)
    for shown in tables(rates, state):
        console.print(shown)
    if arguments.out is not None:
        described = {
            "machine": machine.describe(with_peer=False),
            "rates": {**asdict(rates), "ratios": {name: rates.ratios(name) for name in CONTENDERS[1:]}},
            "state": {**asdict(state), "ratio": state.ratio()},
        }
        arguments.out.write_text(json.dumps(described, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
