"""The exactly-once Kafka sink against Spark's own, which may repeat: topic to topic, and latency.

    python -m benchmarks.scenarios.pipeline_kafka [--rounds N] [--quick] [--apache] [--out FILE]

Both are asked by the same Spark session to carry the same topic into an empty one, with the same number of
partitions; rounds alternate. Time is that of the whole query, from its start to its end. CPU is that of Spark
with its Python workers. Latency is from `produce` to the moment at which a read_committed consumer of the
output has the record, at a steady rate. The broker is an embedded one, or with --apache an Apache Kafka.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.meters import cpu_s
from benchmarks.report import number
from benchmarks.statistics import at_least, percentile
from gapless.errors import GaplessError
from gapless.pipeline import spark_session
from gapless.pipeline.sinks.kafka import exactly_once_to_kafka
from gapless.testing.apache_kafka import ApacheKafka
from gapless.testing.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TARGET = at_least(1.0)
PARTITIONS = 6
RECORDS_PER_S = 1_000
SPARKS, OURS = "Spark's sink", "exactly-once"
_MODULE = "benchmarks.scenarios.pipeline_kafka"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is carried (records, bytes each), how often, and for how long latency is watched."""

    loads: tuple[tuple[int, int], ...]
    rounds: int
    latency_s: float
    warm_up: int
    """Records that both carry before: else the first round would measure Java's compiler."""


FULL = Sizes(((2_000_000, 100), (500_000, 1_000)), 5, 30.0, 1_000_000)
QUICK = Sizes(((20_000, 100), (5_000, 1_000)), 1, 6.0, 20_000)
WARM_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class Carried:
    """One load: a number per round for each contender."""

    records: int
    record_bytes: int
    rates: dict[str, list[float]] = field(default_factory=lambda: {SPARKS: [], OURS: []})
    cpu_s_per_million: dict[str, list[float]] = field(default_factory=lambda: {SPARKS: [], OURS: []})

    def ratios(self) -> list[float]:
        """Within each round: the machine may have changed in between."""
        return [ours / theirs for ours, theirs in zip(self.rates[OURS], self.rates[SPARKS], strict=True)]


@dataclass(frozen=True, slots=True)
class Latency:
    """How long records took, of one contender."""

    contender: str
    records: int
    p50_ms: float
    p99_ms: float


class Bench:
    """A broker, a Spark session, and what is measured on them."""

    def __init__(self, bootstrap: str, spark: SparkSession, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._spark = spark
        self._folder = folder
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
        self._runs = 0

    def carry(self, source: str, contender: str, records: int) -> tuple[float, float]:
        """Everything once: seconds, and CPU seconds of Spark."""
        output, checkpoint = self._new_output()
        before = _cpu_of_children()
        began_s = time.perf_counter()
        query = self._start(source, output, checkpoint, contender, available_now=True)
        if not query.awaitTermination(900):
            raise GaplessError(f"{contender} did not end within a quarter of an hour")
        took_s = time.perf_counter() - began_s
        cpu = sum(used - before.get(pid, 0.0) for pid, used in _cpu_of_children().items())
        arrived = self._count(output)
        if arrived != records:
            raise GaplessError(f"{contender} carried {arrived} of {records} records")
        return took_s, cpu

    def watch(self, contender: str, for_s: float) -> Latency:
        """Records at a steady rate, while the query runs."""
        source = self.new_topic("paced")
        output, checkpoint = self._new_output()
        query = self._start(source, output, checkpoint, contender, available_now=False)
        took_ms: list[int] = []
        ended = threading.Event()
        reader = threading.Thread(target=self._read_latencies, args=(output, took_ms, ended))
        reader.start()
        sent = self._send_paced(source, WARM_UP_S + for_s)
        deadline_s = time.monotonic() + 60
        while len(took_ms) < sent and time.monotonic() < deadline_s and query.isActive:
            time.sleep(0.05)
        ended.set()
        reader.join()
        query.stop()
        if len(took_ms) < sent:
            raise GaplessError(f"{contender} carried {len(took_ms)} of {sent} records")
        counted = sorted(took_ms[int(WARM_UP_S * RECORDS_PER_S) :])
        return Latency(contender, len(counted), percentile(counted, 50), percentile(counted, 99))

    def new_topic(self, kind: str) -> str:
        self._runs += 1
        name = f"{kind}-{self._runs}"
        self._admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
        return name

    def fill(self, records: int, record_bytes: int) -> str:
        """A topic with so many records, spread evenly."""
        topic = self.new_topic("source")
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 20, "log_level": 3})
        value = b"x" * record_bytes
        for index in range(records):
            while True:
                try:
                    producer.produce(topic, value, partition=index % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.flush()
        return topic

    def _new_output(self) -> tuple[str, str]:
        output = self.new_topic("output")
        return output, str(self._folder / output)

    def _start(
        self, source: str, output: str, checkpoint: str, contender: str, *, available_now: bool
    ) -> StreamingQuery:
        rows = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .select("key", "value")
        )
        if contender == SPARKS:
            writer = (
                rows.writeStream.format("kafka")
                .option("kafka.bootstrap.servers", self._bootstrap)
                .option("topic", output)
            )
        else:
            writer = rows.writeStream.foreachBatch(self._exactly_once(output, checkpoint))
        writer = writer.option("checkpointLocation", checkpoint)
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def _exactly_once(self, output: str, checkpoint: str) -> Callable[[DataFrame, int], None]:
        def write(rows: DataFrame, batch: int) -> None:
            exactly_once_to_kafka(
                rows, batch, name=output, bootstrap=self._bootstrap, checkpoint=checkpoint, topic=output
            )

        return write

    def _count(self, topic: str) -> int:
        """Committed records: every one is read, since markers take up offsets, too."""
        consumer = self._reader()
        consumer.subscribe([topic])
        count, quiet_s = 0, time.monotonic()
        while time.monotonic() - quiet_s < 3.0:
            got = len(consumer.consume(10_000, 0.5))
            count += got
            if got:
                quiet_s = time.monotonic()
        consumer.close()
        return count

    def _read_latencies(self, topic: str, took_ms: list[int], ended: threading.Event) -> None:
        consumer = self._reader()
        consumer.subscribe([topic])
        while not ended.is_set():
            for message in consumer.consume(1_000, 0.01):
                value = message.value()
                if value is not None:
                    took_ms.append((time.time_ns() - int(value)) // 1_000_000)
        consumer.close()

    def _reader(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"bench-{time.time_ns()}",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 5,
                "log_level": 3,
            }
        )

    def _send_paced(self, topic: str, for_s: float) -> int:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 1, "log_level": 3})
        count = int(for_s * RECORDS_PER_S)
        began_s = time.perf_counter()
        for index in range(count):
            due_s = began_s + index / RECORDS_PER_S
            while (wait_s := due_s - time.perf_counter()) > 0:
                time.sleep(wait_s)
            producer.produce(topic, str(time.time_ns()), partition=index % PARTITIONS)
            producer.poll(0)
        producer.flush()
        return count


def _cpu_of_children() -> dict[int, float]:
    """CPU seconds of every process that this one has started, and of theirs."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, wanted = dict[int, float](), [os.getpid()]
    while wanted:
        parent = wanted.pop()
        for pid, its_parent in parents.items():
            if its_parent == parent:
                wanted.append(pid)
                try:
                    found[pid] = cpu_s([pid])
                except OSError:
                    continue
    return found


@contextmanager
def _broker(apache: bool) -> Iterator[str]:
    if apache:
        with ApacheKafka() as kafka:
            yield kafka.bootstrap
    else:
        with EmbeddedBroker() as broker:
            yield broker.bootstrap


def measure(sizes: Sizes, *, apache: bool, say: Callable[[str], None]) -> tuple[list[Carried], list[Latency]]:
    """All loads and both contenders in turn, then their latency."""
    with _broker(apache) as bootstrap, tempfile.TemporaryDirectory(prefix="gapless-pipeline-") as folder:
        # The broker is a child as well, but a small one: both contenders pay it.
        spark = spark_session("gapless-bench", config={"spark.sql.adaptive.enabled": "false"})
        bench = Bench(bootstrap, spark, Path(folder))
        warm_up = bench.fill(sizes.warm_up, 100)
        for contender in (SPARKS, OURS):
            bench.carry(warm_up, contender, sizes.warm_up)
        carried = []
        for records, record_bytes in sizes.loads:
            load = Carried(records, record_bytes)
            source = bench.fill(records, record_bytes)
            for round_number in range(sizes.rounds):
                for contender in (SPARKS, OURS) if round_number % 2 == 0 else (OURS, SPARKS):
                    took_s, cpu = bench.carry(source, contender, records)
                    load.rates[contender].append(records / took_s)
                    load.cpu_s_per_million[contender].append(cpu / records * 1e6)
                    say(f"{records:,} × {record_bytes} B · {contender} · {took_s:.1f} s · CPU {cpu:.1f} s")
            carried.append(load)
        latencies = [bench.watch(contender, sizes.latency_s) for contender in (SPARKS, OURS)]
        spark.stop()
    return carried, latencies


def tables(carried: Sequence[Carried], latencies: Sequence[Latency]) -> Iterator[Table]:
    shown = Table(title="Topic to topic: records/s, median (ratio: spread)", title_justify="left")
    for heading in ("load", SPARKS, OURS, "ratio", "target", "", f"CPU s/million, {SPARKS}", OURS):
        shown.add_column(heading, justify="right")
    for load in carried:
        ratios = load.ratios()
        shown.add_row(
            f"{load.records:,} × {load.record_bytes:,} B",
            number(median(load.rates[SPARKS])),
            number(median(load.rates[OURS])),
            f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
            str(TARGET),
            "ok" if TARGET.met_by(median(ratios)) else "short",
            f"{median(load.cpu_s_per_million[SPARKS]):.1f}",
            f"{median(load.cpu_s_per_million[OURS]):.1f}",
        )
    yield shown
    shown = Table(title=f"Produce to visible at {RECORDS_PER_S:,} records/s", title_justify="left")
    for heading in ("sink", "records", "p50", "p99"):
        shown.add_column(heading, justify="right")
    for each in latencies:
        shown.add_row(each.contender, f"{each.records:,}", f"{each.p50_ms:,.0f} ms", f"{each.p99_ms:,.0f} ms")
    yield shown


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    parser.add_argument("--apache", action="store_true", help="on Apache Kafka")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    arguments = parser.parse_args(argv)
    sizes = QUICK if arguments.quick else FULL
    sizes = replace(sizes, rounds=arguments.rounds or sizes.rounds)
    carried, latencies = measure(
        sizes, apache=arguments.apache, say=lambda line: print(line, file=sys.stderr)
    )
    console = Console(width=None if sys.stdout.isatty() else 140)
    for shown in tables(carried, latencies):
        console.print(shown)
    if arguments.out is not None:
        described = {
            "machine": machine.describe(with_peer=arguments.apache),
            "carried": [asdict(each) for each in carried],
            "latency": [asdict(each) for each in latencies],
        }
        arguments.out.write_text(json.dumps(described, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
