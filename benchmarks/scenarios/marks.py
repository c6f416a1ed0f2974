"""What it costs to know which records are done: intervals per source against a mark per message (claim F2).

    python -m benchmarks.scenarios.marks [--records N] [--sources N ...] [--out FILE]

The same records, in the same batches, from few and from many sources, are marked by four contenders:

- `intervals, SQLite`: SqliteStore, with a handler that does nothing;
- `row per message, SQLite`: a table with a row for every record, with the same commits;
- `intervals, Redis`: RedisStore, which asks Redis once per record to narrow what a crash leaves in doubt;
- `key per message, Redis`: SET NX with an expiry for every record, pipelined in batches.

Each runs in a process of its own. Time is that of marking alone. Memory is what the process has grown by, or
what Redis says that it uses; disk is the file after a checkpoint. At the end the last batch comes again under
new offsets, and every contender must know all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.meters import pss_bytes
from benchmarks.report import number
from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, sequence_header, source_header
from gapless.client.records import Record, TopicPartition
from gapless.client.stores.port import Store
from gapless.errors import GaplessError
from gapless.testing.redis import Redis

PARTITION = TopicPartition("orders", 0)
GROUP = "billing"
EXPIRE_S = 86_400
_MODULE = "benchmarks.scenarios.marks"
_ROOT = Path(__file__).resolve().parents[2]

Apply = Callable[[Sequence[Record]], int]
"""Marks a batch; how many of it were new."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is marked. `asked` is for the contender that asks once per record, and so takes longest."""

    records: int = 10_000_000
    sources: tuple[int, ...] = (1, 100, 10_000)
    batch: int = 1_000
    asked: int = 500_000


@dataclass(frozen=True, slots=True)
class Marked:
    """One contender at one number of sources."""

    contender: str
    sources: int
    records: int
    wall_s: float
    memory_bytes: int
    disk_bytes: int


class Log:
    """Records from all sources in turn, made when they are asked for."""

    def __init__(self, sources: int) -> None:
        incarnation = b"incarnat"
        self._made_by = [source_header(f"source-{number:05}", incarnation) for number in range(sources)]

    def batch(self, first: int, count: int, offset: int) -> list[Record]:
        """So many records from number `first` on, as they stand in the log from an offset on."""
        made_by, sources = self._made_by, len(self._made_by)
        records: list[Record] = []
        for index in range(count):
            sequence, source = divmod(first + index, sources)
            headers = [(SOURCE_HEADER, made_by[source]), (SEQUENCE_HEADER, sequence_header(sequence))]
            records.append(Record(*PARTITION, offset + index, None, b"", headers))
        return records


def timed(apply: Apply, records: int, sources: int, size: int) -> float:
    """Mark all, and time it; then see that what comes again is known."""
    log, wall_s, new = Log(sources), 0.0, 0
    for first in range(0, records, size):
        batch = log.batch(first, min(size, records - first), offset=first)
        began_s = time.perf_counter()
        new += apply(batch)
        wall_s += time.perf_counter() - began_s
    again = min(size, records)
    known = again - apply(log.batch(records - again, again, offset=records))
    if new != records or known != again:
        raise GaplessError(f"{new} of {records} records were new, and {known} of {again} repeated ones known")
    return wall_s


@contextmanager
def _opened(store: Store) -> Iterator[Apply]:
    store.open(GROUP)
    store.take(PARTITION)
    try:
        yield lambda batch: store.apply(PARTITION, batch, lambda _record, _transaction: None).handled
    finally:
        store.close()


def intervals_in_sqlite(records: int, sources: int, size: int) -> Marked:
    from gapless.client.stores.sqlite import SqliteStore

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "marks.db"
        before = pss_bytes([os.getpid()])
        with _opened(SqliteStore(path)) as apply:
            wall_s = timed(apply, records, sources, size)
            grown = pss_bytes([os.getpid()]) - before
        return Marked("intervals, SQLite", sources, records, wall_s, grown, path.stat().st_size)


def rows_in_sqlite(records: int, sources: int, size: int) -> Marked:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "marks.db"
        before = pss_bytes([os.getpid()])
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(
            "CREATE TABLE done (source TEXT, incarnation BLOB, sequence INTEGER,"
            " PRIMARY KEY (source, incarnation, sequence)) WITHOUT ROWID"
        )

        def apply(batch: Sequence[Record]) -> int:
            connection.execute("BEGIN IMMEDIATE")
            rows = [record.identity for record in batch]
            done = connection.executemany("INSERT OR IGNORE INTO done VALUES (?, ?, ?)", rows)  # type: ignore[arg-type]
            connection.execute("COMMIT")
            return done.rowcount

        wall_s = timed(apply, records, sources, size)
        grown = pss_bytes([os.getpid()]) - before
        connection.close()
        return Marked("row per message, SQLite", sources, records, wall_s, grown, path.stat().st_size)


def intervals_in_redis(records: int, sources: int, size: int) -> Marked:
    from gapless.client.stores.redis import RedisStore

    with Redis() as server:
        before = _used_bytes(server)
        with _opened(RedisStore(server.url, expire=EXPIRE_S, in_doubt="redo")) as apply:
            wall_s = timed(apply, records, sources, size)
        return Marked("intervals, Redis", sources, records, wall_s, _used_bytes(server) - before, 0)


def keys_in_redis(records: int, sources: int, size: int) -> Marked:
    from redis import Redis as Client

    with Redis() as server, Client.from_url(server.url) as client:
        before = _used_bytes(server)

        def apply(batch: Sequence[Record]) -> int:
            pipeline = client.pipeline(transaction=False)
            for record in batch:
                if (identity := record.identity) is not None:
                    key = f"{identity.source}:{identity.incarnation.hex()}:{identity.sequence}"
                    pipeline.set(key, b"1", nx=True, ex=EXPIRE_S)
            return sum(map(bool, pipeline.execute()))

        wall_s = timed(apply, records, sources, size)
        return Marked("key per message, Redis", sources, records, wall_s, _used_bytes(server) - before, 0)


def _used_bytes(server: Redis) -> int:
    from redis import Redis as Client

    with Client.from_url(server.url) as client:
        return int(client.info("memory")["used_memory"])


CONTENDERS = {
    "intervals-sqlite": intervals_in_sqlite,
    "rows-sqlite": rows_in_sqlite,
    "intervals-redis": intervals_in_redis,
    "keys-redis": keys_in_redis,
}
ASKS_PER_RECORD = {"intervals-redis"}


def measure(sizes: Sizes, say: Callable[[str], None] = lambda _: None) -> list[Marked]:
    """All contenders in turn, each in a fresh process."""
    found: list[Marked] = []
    for sources in sizes.sources:
        for name in CONTENDERS:
            records = (
                max(sources, min(sizes.records, sizes.asked)) if name in ASKS_PER_RECORD else sizes.records
            )
            command = [
                sys.executable,
                "-m",
                _MODULE,
                "--job",
                name,
                str(records),
                str(sources),
                str(sizes.batch),
            ]
            done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise GaplessError(f"{name} with {sources} sources failed: {done.stderr.strip()[-300:]}")
            marked = Marked(**json.loads(done.stdout))
            say(f"{marked.contender}, {sources:,} sources: {marked.wall_s:.1f} s")
            found.append(marked)
    return found


def table(found: Sequence[Marked]) -> Table:
    shown = Table(title="Marks: intervals per source against a mark per message", title_justify="left")
    for heading in ("sources", "contender", "records", "µs/record", "memory", "disk"):
        shown.add_column(heading, justify="left" if heading == "contender" else "right")
    for each in found:
        per_record = f"{each.wall_s / each.records * 1e6:.2f}"
        memory, disk = (
            f"{number(each_bytes / 1e6)} MB" for each_bytes in (each.memory_bytes, each.disk_bytes)
        )
        shown.add_row(f"{each.sources:,}", each.contender, f"{each.records:,}", per_record, memory, disk)
    return shown


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    full = Sizes()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scenarios.marks", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--records", type=int, default=full.records)
    parser.add_argument("--sources", type=int, nargs="+", default=full.sources)
    parser.add_argument("--batch", type=int, default=full.batch)
    parser.add_argument("--asked", type=int, default=full.asked, help="records of who asks once per record")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--job", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.job:
        name, *counts = arguments.job
        print(json.dumps(asdict(CONTENDERS[name](*map(int, counts)))))
        return 0
    sizes = Sizes(arguments.records, tuple(arguments.sources), arguments.batch, arguments.asked)
    found = measure(sizes, lambda line: print(line, file=sys.stderr))
    Console().print(table(found))
    if arguments.out is not None:
        described = {"machine": machine.describe(with_peer=False), "marks": [asdict(each) for each in found]}
        arguments.out.write_text(json.dumps(described, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
