"""A consumer's process in small: applies a log to a store, and dies at a chosen moment. For test_crashes.

Run as `python -m tests.client.stores.worker`, it has everything imported and forks one process for every line
that it reads: KIND ADDRESS FILE SEED MOMENT, with tabs between. It answers with the lines `ready PID` and
`ended STATUS`.

The log is a function of the seed, with records that stand in it twice. MOMENT is `end` (never), `random` (the
parent kills it), or one of the worst: `before-commit`, `after-commit`, `before-mark`, `after-mark`. FILE is
where effects go that are not in a database; how it ends tells what to do with records in doubt.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gapless.client.records import Record
from gapless.client.stores.port import Store
from tests.client.stores.kits import FIRST, GROUP, Kit, PostgresKit, RedisKit, SqliteKit, record

COUNT = 240


def log_of(seed: int) -> list[Record]:
    """Records in the order of one partition; every fifth stands there again somewhat later."""
    chance = random.Random(seed)
    sequences = list(range(COUNT))
    for sequence in range(0, COUNT, 5):
        sequences.insert(sequences.index(sequence) + chance.randrange(1, 20), sequence)
    return [record(offset, sequence) for offset, sequence in enumerate(sequences)]


def expected_effects() -> list[bytes]:
    return [f"shop:{sequence}".encode() for sequence in range(COUNT)]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_around_commit(store: Any, moment: str, at: int) -> None:
    """Let the store's process die right before, or right after, its transaction number `at` commits."""
    original, count = store._transaction, 0

    @contextmanager
    def transaction() -> Iterator[Any]:
        nonlocal count
        count += 1
        with original() as opened:
            yield opened
            if moment == "before-commit" and count == at:
                die()
        if moment == "after-commit" and count == at:
            die()

    store._transaction = transaction


def die_around_mark(store: Any, moment: str, at: int) -> None:
    """Let the process die when effect number `at` has happened: before Redis hears of it, or after.

    After means: when the next new record has begun. What stands in the log again does not begin.
    """
    original, count = store._step, 0

    def step(partition: Any, owned: Any, begin: Any, *, force: bool = False) -> Any:
        nonlocal count
        count += owned.finished is not None
        if moment == "before-mark" and count == at:
            die()
        answer = original(partition, owned, begin, force=force)
        if moment == "after-mark" and count >= at and answer.begun == "new":
            die()
        return answer

    store._step = step


def kit_of(kind: str, address: str, file: str) -> Kit:
    if kind == "sqlite":
        return SqliteKit(Path(address))
    return PostgresKit(address) if kind == "postgres" else RedisKit(address, Path(file))


def work(kit: Kit, store: Store, log: list[Record], chance: random.Random) -> None:
    """From the store's offset, or all of it again: the consumer's group may know nothing yet."""
    at = store.take(FIRST) or 0
    while at < len(log):
        batch = log[at : at + chance.randrange(1, 12)]
        store.apply(FIRST, batch, kit.handler)
        at += len(batch)


def live(kind: str, address: str, file: str, seed: str, moment: str) -> None:
    """One life, in a process of its own."""
    chance = random.Random()
    kit = kit_of(kind, address, file)
    options = {"lease": 0.05, "in_doubt": file.rpartition(".")[2]} if kind == "redis" else {}
    store = kit.store(**options)
    store.open(GROUP)
    if moment.endswith("-commit"):
        die_around_commit(store, moment, chance.randrange(2, 8))
    elif moment.endswith("-mark"):
        die_around_mark(store, moment, chance.randrange(1, 20))
    print(f"ready {os.getpid()}", flush=True)
    work(kit, store, log_of(int(seed)), chance)
    store.close()
    kit.close()


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                live(*line.rstrip("\n").split("\t"))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(ended)}", flush=True)


if __name__ == "__main__":
    for library in ("psycopg", "redis"):
        with contextlib.suppress(ImportError):  # then nobody will ask for it
            importlib.import_module(library)
    main()
