"""An audit against a count of the same topic by Spark (claim F3).

    python -m benchmarks.scenarios.audit [--records N ...] [--sources N] [--rounds N] [--quick] [--out FILE]

Topics of growing size on an embedded broker, from many sources in turn, with seals for all of them. Each
is audited; and counted, once with its headers read and once bare, by the same session with the same reading
options. Rounds alternate. At last one audit of the largest topic runs in a process of its own, and the most
memory that it ever had is told, Spark and its Python workers together.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
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
from benchmarks.meters import pss_bytes
from benchmarks.report import number
from benchmarks.scenarios.pipeline_kafka import _cpu_of_children as cpu_of_children
from benchmarks.statistics import at_most
from gapless.audit import Verdict
from gapless.audit.auditing import audit
from gapless.audit.cluster import Cluster
from gapless.audit.reading import Reader
from gapless.client.formats import (
    SEQUENCE_HEADER,
    SOURCE_HEADER,
    Interval,
    Seal,
    sequence_header,
    source_header,
)
from gapless.errors import GaplessError
from gapless.pipeline import spark_session
from gapless.pipeline.properties import client_properties
from gapless.testing.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = at_most(2.0)
PARTITIONS = 4
RECORD_BYTES = 100
WARM_UP = 20_000
RECORDS_PER_SEAL = 10_000
INCARNATION = b"incarnat"
AUDIT, COUNT, BARE = "audit", "count with headers", "bare count"
CONTENDERS = (AUDIT, COUNT, BARE)
_MODULE = "benchmarks.scenarios.audit"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many records there are in each topic, from how many sources, and how often they are read."""

    records: tuple[int, ...] = (1_000_000, 3_000_000, 10_000_000)
    sources: int = 1_000
    rounds: int = 3


QUICK = Sizes((30_000, 40_000), 100, 1)


@dataclass(frozen=True, slots=True)
class Times:
    """Of one topic, a number per round for each contender."""

    records: int
    sources: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in CONTENDERS})
    cpu_s: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in CONTENDERS})

    def ratios(self, other: str) -> list[float]:
        """Within each round: the machine may have changed in between."""
        return [ours / theirs for ours, theirs in zip(self.seconds[AUDIT], self.seconds[other], strict=True)]


def fill(bootstrap: str, records: int, sources: int) -> str:
    """A topic and its ledger. Each source sends to each partition in turn."""
    topic = f"audited-{records}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    for answer in admin.create_topics(
        [NewTopic(topic, PARTITIONS, 1), NewTopic(f"{topic}-ledger", 1, 1)]
    ).values():
        answer.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 3})
    makers = [source_header(name_of(each), INCARNATION) for each in range(sources)]
    for index in range(records):
        turn, partition = divmod(index, PARTITIONS)
        sequence, source = divmod(turn, sources)
        headers: list[tuple[str, str | bytes | None]] = [
            (SOURCE_HEADER, makers[source]),
            (SEQUENCE_HEADER, sequence_header(sequence)),
        ]
        while True:
            try:
                producer.produce(topic, b"x" * RECORD_BYTES, partition=partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
    for seal in seals(topic, records, sources):
        producer.produce(f"{topic}-ledger", seal.to_bytes(), key=seal.key())
    producer.flush()
    return topic


def name_of(source: int) -> str:
    return f"source-{source:05}"


def seals(topic: str, records: int, sources: int) -> Iterator[Seal]:
    """What each source promises: of each partition all that it has sent, in as many seals as it takes."""
    turns = records // PARTITIONS
    for source in range(sources):
        count = turns // sources + (source < turns % sources)
        step = max(RECORDS_PER_SEAL // PARTITIONS, 1)
        for first in range(0, count, step):
            last = min(first + step, count) - 1
            intervals = tuple(Interval(topic, partition, first, last) for partition in range(PARTITIONS))
            yield Seal(name_of(source), INCARNATION, time.time_ns() // 1_000_000, "interval", intervals)


class Bench:
    """A broker's topics, read by one Spark session."""

    def __init__(self, bootstrap: str, spark: SparkSession) -> None:
        self._bootstrap = bootstrap
        self._spark = spark

    def run(self, contender: str, topic: str, records: int) -> tuple[float, float]:
        """Seconds, and CPU seconds of Spark and its workers."""
        before, began_s = cpu_of_children(), time.perf_counter()
        found = self._audited(topic) if contender == AUDIT else self._counted(topic, contender == COUNT)
        took_s = time.perf_counter() - began_s
        cpu = sum(used - before.get(pid, 0.0) for pid, used in cpu_of_children().items())
        if found != records:
            raise GaplessError(f"{contender} found {found:,} records of {records:,}")
        return took_s, cpu

    def _audited(self, topic: str) -> int:
        report = audit(self._spark, self._bootstrap, topic, ledger=f"{topic}-ledger")
        if report.verdict is not Verdict.CLEAN:
            raise GaplessError(f"the audit says: {report.verdict}")
        return report.hops[0].counts.present

    def _counted(self, topic: str, with_headers: bool) -> int:
        from pyspark.sql import functions as sf

        properties = client_properties()
        cluster = Cluster(self._bootstrap, properties.for_librdkafka(self._bootstrap))
        records = Reader(self._spark, self._bootstrap, properties).records(topic, cluster.ends(topic))
        counted = sf.sum(sf.size("headers")) if with_headers else 2 * sf.count("*")
        return int(records.agg(counted).collect()[0][0]) // 2


def measure(sizes: Sizes, say: Callable[[str], None]) -> tuple[list[Times], int]:
    """Times by topic, and the most memory of an audit of the largest, in bytes."""
    with EmbeddedBroker() as broker:
        spark = spark_session("gapless-bench", master="local[*]")
        bench = Bench(broker.bootstrap, spark)
        warm_up = fill(broker.bootstrap, WARM_UP, min(sizes.sources, 100))
        for contender in CONTENDERS:
            bench.run(contender, warm_up, WARM_UP)
        every, topic = [], warm_up
        for records in sizes.records:
            topic = fill(broker.bootstrap, records, sizes.sources)
            times = Times(records, sizes.sources)
            every.append(times)
            for round_number in range(sizes.rounds):
                for contender in CONTENDERS if round_number % 2 == 0 else CONTENDERS[::-1]:
                    took_s, cpu = bench.run(contender, topic, records)
                    times.seconds[contender].append(took_s)
                    times.cpu_s[contender].append(cpu)
                    say(f"{records:,} records · {contender} · {took_s:.1f} s · CPU {cpu:.1f} s")
        spark.stop()
        most_bytes = memory_of_audit(broker.bootstrap, topic)
        say(f"{sizes.records[-1]:,} records · the audit's memory was at most {most_bytes / 1e6:,.0f} MB")
    return every, most_bytes


def memory_of_audit(bootstrap: str, topic: str) -> int:
    """The most that `gapless audit` ever has, with all that it starts."""
    command = ["audit", "--bootstrap", bootstrap, "--topic", topic, "--ledger", f"{topic}-ledger", "--json"]
    process = subprocess.Popen([sys.executable, "-m", "gapless", *command], stdout=subprocess.DEVNULL)
    most_bytes = 0
    while process.poll() is None:
        time.sleep(0.2)
        try:
            most_bytes = max(most_bytes, pss_bytes(with_descendants(process.pid)))
        except (OSError, RuntimeError):  # one of them ended just now
            continue
    if process.returncode:
        raise GaplessError(f"gapless audit ended with {process.returncode}")
    return most_bytes


def with_descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in with_descendants(int(child)))]


def tables(every: Sequence[Times], most_bytes: int) -> Iterator[Table]:
    shown = Table(title="An audit and counts of the same topic, median", title_justify="left")
    for heading in (
        "records",
        "sources",
        *CONTENDERS,
        "audit / count",
        "target",
        "",
        "audit / bare",
        "CPU s/million",
    ):
        shown.add_column(heading, justify="right")
    for times in every:
        ratios, bare = times.ratios(COUNT), times.ratios(BARE)
        cpu = [median(times.cpu_s[name]) / times.records * 1e6 for name in CONTENDERS]
        shown.add_row(
            f"{times.records:,}",
            f"{times.sources:,}",
            *(f"{median(times.seconds[name]):.1f} s" for name in CONTENDERS),
            f"{median(ratios):.2f} × ({min(ratios):.2f}–{max(ratios):.2f})",
            str(TARGET),
            "ok" if TARGET.met_by(median(ratios)) else "short",
            f"{median(bare):.2f} ×",
            " · ".join(f"{each:.1f}" for each in cpu),
        )
    yield shown
    shown = Table(title="An audit of the largest, in a process of its own", title_justify="left")
    shown.add_column("memory at most", justify="right")
    shown.add_row(f"{number(most_bytes / 1e6)} MB")
    yield shown


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, nargs="+", help="one topic for each")
    parser.add_argument("--sources", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    arguments = parser.parse_args(argv)
    usual = QUICK if arguments.quick else Sizes()
    sizes = Sizes(
        tuple(arguments.records or usual.records),
        arguments.sources or usual.sources,
        arguments.rounds or usual.rounds,
    )
    every, most_bytes = measure(sizes, lambda line: print(line, file=sys.stderr))
    console = Console(width=None if sys.stdout.isatty() else 160)
    for shown in tables(every, most_bytes):
        console.print(shown)
    if arguments.out is not None:
        described = {
            "machine": machine.describe(with_peer=False),
            "times": [
                {**asdict(each), "ratios": {name: each.ratios(name) for name in CONTENDERS[1:]}}
                for each in every
            ],
            "memory_bytes": most_bytes,
        }
        arguments.out.write_text(json.dumps(described, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
