"""The consumer with a store against a hand-written loop that makes the same transactions.

    python -m benchmarks.scenarios.client_consumer [--records N] [--rounds N] [--quick] [--out FILE]

All read the same topic of one embedded broker, from its beginning to its end, as the only member of a group,
and insert a row for each record:

- `hand-written loop`: what a careful program without marks does: `consume(n)`, insert, update the offset in
  the same transaction, commit. What was sent twice, it inserts twice;
- `loop with marks`: the same with all that the consumer's transactions have: it inserts a record only if its
  identity is new, and writes up to where each source is done. It knows nothing of retries, of holes in a
  source, or of another member of the group;
- `Consumer`.

Time is from the first record to the commit of the last, and so is the CPU time of the process. Each run is
a process of its own; rounds alternate.
`no store` is without a database, and so without marks, to show the consumer's own cost.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer as BareConsumer
from confluent_kafka import Producer as BareProducer
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.report import number
from benchmarks.statistics import at_least
from gapless.client.consuming.backlog import Work
from gapless.client.consuming.consumer import Consumer
from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, sequence_header, source_header
from gapless.client.records import Record
from gapless.client.stores.port import Store
from gapless.errors import GaplessError
from gapless.testing.broker import EmbeddedBroker
from gapless.testing.postgres import Postgres

TARGET = at_least(0.9)
BATCH = 500
RECORD_BYTES = 100
NO_STORE = "no store"
STORES = (NO_STORE, "SQLite", "PostgreSQL")
LOOP, MARKING, CONSUMER = "hand-written loop", "loop with marks", "Consumer"
COMMIT_EVERY_S = 0.5
_MODULE = "benchmarks.scenarios.client_consumer"
_ROOT = Path(__file__).resolve().parents[2]
_TABLE = "CREATE TABLE IF NOT EXISTS effects (place BIGINT PRIMARY KEY, body {bytes})"
_OFFSETS = "CREATE TABLE IF NOT EXISTS offsets (partition INTEGER PRIMARY KEY, next_offset BIGINT)"
_MARKS = "CREATE TABLE IF NOT EXISTS marks (source {bytes} PRIMARY KEY, last_sequence BIGINT)"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many records are consumed of each kind, and how often."""

    records: dict[str, int]
    rounds: int


FULL = Sizes({NO_STORE: 300_000, "SQLite": 200_000, "PostgreSQL": 60_000}, 5)
QUICK = Sizes({NO_STORE: 20_000, "SQLite": 10_000, "PostgreSQL": 3_000}, 2)


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one contender."""

    contender: str
    store: str
    bootstrap: str
    topic: str
    group: str
    records: int
    database: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Records per second, and microseconds of CPU for each, a number for each round."""

    store: str
    records: int
    rates: dict[str, list[float]]
    cpu_us: dict[str, list[float]]

    def ratio(self, baseline: str = LOOP) -> float:
        """Within each round: the machine may have changed in between."""
        pairs = zip(self.rates[CONSUMER], self.rates[baseline], strict=True)
        return median(ours / theirs for ours, theirs in pairs)

    def cpu_ratio(self, baseline: str) -> float:
        """What the loop needs of what we need: the same direction as `ratio`, on a busy machine steadier."""
        pairs = zip(self.cpu_us[CONSUMER], self.cpu_us[baseline], strict=True)
        return median(theirs / ours for ours, theirs in pairs)


@dataclass(frozen=True, slots=True)
class Took:
    """From the first record to the commit of the last."""

    wall_s: float
    cpu_s: float


class Watch:
    """Begins when it is first told to."""

    def __init__(self) -> None:
        self._began: Took | None = None

    def begin(self) -> None:
        if self._began is None:
            self._began = Took(time.perf_counter(), time.process_time())

    def took(self) -> Took:
        assert self._began is not None
        return Took(time.perf_counter() - self._began.wall_s, time.process_time() - self._began.cpu_s)


# What a process does


def with_loop(job: Job) -> Took:
    """By hand."""
    consumer = BareConsumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": job.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "log_level": 3,
        }
    )
    consumer.subscribe([job.topic])
    apply = _apply_by_hand(job)
    watch, done, commit_at_s = Watch(), 0, 0.0
    try:
        while done < job.records:
            batch = consumer.consume(min(BATCH, job.records - done), 0.1)
            if batch:
                watch.begin()
                apply(batch)
                done += len(batch)
                if job.store == NO_STORE and time.perf_counter() > commit_at_s:
                    consumer.commit(asynchronous=True)
                    commit_at_s = time.perf_counter() + COMMIT_EVERY_S
        return watch.took()
    finally:
        consumer.close()


def _apply_by_hand(job: Job) -> Callable[[Sequence[Any]], None]:
    if job.store == NO_STORE:
        seen: list[bytes] = []
        return lambda batch: seen.extend(message.value()[:4] for message in batch)
    connection, mark = _connected(job)
    insert = f"INSERT INTO effects VALUES ({mark}, {mark})"
    advance = (
        f"INSERT INTO offsets VALUES ({mark}, {mark})"
        " ON CONFLICT (partition) DO UPDATE SET next_offset = excluded.next_offset"
    )
    note = (
        f"INSERT INTO marks VALUES ({mark}, {mark})"
        " ON CONFLICT (source) DO UPDATE SET last_sequence = excluded.last_sequence"
    )
    marks: dict[bytes, int] = {}

    def apply(batch: Sequence[Any]) -> None:
        connection.execute("BEGIN")
        for message in batch:
            connection.execute(insert, (message.offset(), message.value()))
        connection.execute(advance, (0, batch[-1].offset() + 1))
        connection.execute("COMMIT")

    def apply_and_mark(batch: Sequence[Any]) -> None:
        connection.execute("BEGIN")
        seen = set()
        for message in batch:
            headers = dict(message.headers() or ())
            source, sequence = headers[SOURCE_HEADER], int.from_bytes(headers[SEQUENCE_HEADER])
            if sequence > marks.get(source, -1):
                marks[source] = sequence
                seen.add(source)
                connection.execute(insert, (message.offset(), message.value()))
        for source in seen:
            connection.execute(note, (source, marks[source]))
        connection.execute(advance, (0, batch[-1].offset() + 1))
        connection.execute("COMMIT")

    return apply_and_mark if job.contender == MARKING else apply


def _connected(job: Job) -> tuple[Any, str]:
    """A connection in which the user begins and ends transactions, and how it writes parameters."""
    connection: Any
    if job.store == "SQLite":
        connection = sqlite3.connect(job.database, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        mark, kind = "?", "BLOB"
    else:
        import psycopg

        connection = psycopg.connect(job.database, autocommit=True)
        mark, kind = "%s", "BYTEA"
    connection.execute(_TABLE.format(bytes=kind))
    connection.execute(_OFFSETS)
    connection.execute(_MARKS.format(bytes=kind))
    return connection, mark


def with_consumer(job: Job) -> Took:
    """By ours."""
    store: Store | None = None
    mark = "?"
    if job.store != NO_STORE:
        connection, mark = _connected(job)
        connection.close()
    if job.store == "SQLite":
        from gapless.client.stores.sqlite import SqliteStore

        store = SqliteStore(job.database)
    elif job.store == "PostgreSQL":
        from gapless.client.stores.postgres import PostgresStore

        store = PostgresStore(job.database)
    consumer = Consumer(job.bootstrap, group=job.group, topics=job.topic, store=store, batch_records=BATCH)
    insert = f"INSERT INTO effects VALUES ({mark}, {mark})"
    seen: list[bytes] = []

    def insert_one(record: Record, tx: Any) -> None:
        tx.execute(insert, (record.offset, record.value))

    def keep_one(record: Record) -> None:
        seen.append((record.value or b"")[:4])

    took = _timed(consumer, job.records - 1)
    consumer.run(keep_one if store is None else insert_one)
    return took[0]


def _timed(consumer: Consumer, last_offset: int) -> list[Took]:
    """Stop behind the last record, and take the time; leaving the group does not count, as in the loop."""
    watch, took = Watch(), list[Took]()
    take, finish = consumer._backlog.take, consumer._backlog.finish

    def take_and_begin(timeout_s: float | None = None) -> Work | None:
        work = take(timeout_s)
        watch.begin()
        return work

    def finish_and_stop(work: Work, took_s: float | None = None) -> None:
        finish(work, took_s)
        if work.records[-1].offset == last_offset:
            took.append(watch.took())
            consumer.stop()

    consumer._backlog.take = take_and_begin  # type: ignore[method-assign]
    consumer._backlog.finish = finish_and_stop  # type: ignore[method-assign]
    return took


# The runs


def fill(bootstrap: str, topic: str, records: int) -> None:
    """With identities, as a Gapless producer gives them."""
    producer = BareProducer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 3})
    made_by, value = source_header("orders", b"incarnat"), b"x" * RECORD_BYTES
    for sequence in range(records):
        producer.produce(
            topic,
            value,
            headers=[(SOURCE_HEADER, made_by), (SEQUENCE_HEADER, sequence_header(sequence))],
            partition=0,
        )
        if sequence % 10_000 == 0:
            producer.flush()
    producer.flush()


def run(job: Job) -> Took:
    """In a process of its own."""
    command = [sys.executable, "-m", _MODULE, "--job", json.dumps(asdict(job))]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise GaplessError(f"{job.contender} with {job.store} failed:\n{done.stderr.strip()[-1000:]}")
    return Took(**json.loads(done.stdout))


def measure(sizes: Sizes, say: Callable[[str], None]) -> list[Measured]:
    """All stores, the contenders in turn."""
    found = []
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gapless-consumer-")))
        postgres = stack.enter_context(Postgres())
        for store in STORES:
            topic, records = f"for-{store.lower().replace(' ', '-')}", sizes.records[store]
            fill(broker.bootstrap, topic, records)
            contenders = (LOOP, CONSUMER) if store == NO_STORE else (LOOP, MARKING, CONSUMER)
            rates: dict[str, list[float]] = {contender: [] for contender in contenders}
            cpu_us: dict[str, list[float]] = {contender: [] for contender in contenders}
            for round_number in range(sizes.rounds):
                for contender in contenders if round_number % 2 == 0 else contenders[::-1]:
                    name = f"{store}-{contender}-{round_number}".replace(" ", "-")
                    database = str(folder / f"{name}.db") if store == "SQLite" else emptied(postgres, store)
                    job = Job(contender, store, broker.bootstrap, topic, name, records, database)
                    took = run(job)
                    rates[contender].append(records / took.wall_s)
                    cpu_us[contender].append(took.cpu_s / records * 1e6)
            measured = Measured(store, records, rates, cpu_us)
            say(f"{store}: {measured.ratio():.2f} of the loop, by CPU {measured.cpu_ratio(LOOP):.2f}")
            found.append(measured)
    return found


def emptied(postgres: Postgres, store: str) -> str:
    """The address of a database without tables."""
    if store == "PostgreSQL":
        import psycopg

        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
    return postgres.dsn


def table(found: Sequence[Measured]) -> Table:
    shown = Table(title=f"Consumer: records/s (median), transactions of {BATCH}", title_justify="left")
    headings = (
        "store",
        "records",
        LOOP,
        MARKING,
        CONSUMER,
        f"to {LOOP}",
        "target",
        "",
        f"to {MARKING}",
        "",
        "by CPU",
    )
    for heading in headings:
        shown.add_column(heading, justify="right")
    for each in found:
        has_marks = each.store != NO_STORE
        shown.add_row(
            each.store,
            f"{each.records:,}",
            number(median(each.rates[LOOP])),
            number(median(each.rates[MARKING])) if has_marks else "",
            number(median(each.rates[CONSUMER])),
            f"{each.ratio():.2f}",
            str(TARGET) if has_marks else "",
            _verdict(each.ratio()) if has_marks else "",
            f"{each.ratio(MARKING):.2f}" if has_marks else "",
            _verdict(each.ratio(MARKING)) if has_marks else "",
            f"{each.cpu_ratio(MARKING if has_marks else LOOP):.2f}",
        )
    return shown


def _verdict(ratio: float) -> str:
    return "ok" if TARGET.met_by(ratio) else "short"


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.job is not None:
        job = Job(**json.loads(arguments.job))
        took = with_consumer(job) if job.contender == CONSUMER else with_loop(job)
        print(json.dumps(asdict(took)))
        return 0
    sizes = QUICK if arguments.quick else FULL
    sizes = Sizes(sizes.records, arguments.rounds or sizes.rounds)
    found = measure(sizes, lambda line: print(line, file=sys.stderr))
    Console(width=None if sys.stdout.isatty() else 140).print(table(found))
    if arguments.out is not None:
        described = {
            "machine": machine.describe(with_peer=False),
            "consumer": [asdict(each) for each in found],
        }
        arguments.out.write_text(json.dumps(described, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
