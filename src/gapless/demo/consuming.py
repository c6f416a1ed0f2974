"""The billing of the demo: a row in a database for each order, until it is killed.

    python -m gapless.demo.consuming '{"side": "gapless", "bootstrap": ..., "folder": ...}'

The everyday one polls, inserts, and lets the client commit offsets by itself. The other one is a Gapless
consumer with a store: rows and offsets are one transaction.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer as BareConsumer

from gapless.client import Consumer, Record, SqliteStore
from gapless.demo.sides import EVERYDAY, PARTITIONS, Side
from gapless.demo.telling import TELL_EVERY_S, NowAndThen, commands, tell
from gapless.testing.quiet import quiet_logger

# The shortest that brokers allow: a consumer that was killed is missed after that.
_SESSION_MS = 6_000
_BATCH = 500
_TABLE = "CREATE TABLE IF NOT EXISTS bills (partition INTEGER, offset INTEGER, body BLOB)"
_INSERT = "INSERT INTO bills VALUES (?, ?, ?)"


def run_everyday(side: Side, bootstrap: str, billed: int) -> None:
    consumer = BareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": side.group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": _SESSION_MS,
            "logger": quiet_logger(),
        }
    )
    consumer.subscribe([side.orders])
    database, told = sqlite3.connect(side.bills), NowAndThen()
    while True:
        messages = [each for each in consumer.consume(_BATCH, 0.1) if each.error() is None]
        with database:
            database.executemany(_INSERT, [(m.partition(), m.offset(), m.value()) for m in messages])
        billed += len(messages)
        if told.is_due():
            tell(billed=billed, is_at_end=not messages and _is_at_end(consumer))


def _is_at_end(consumer: BareConsumer) -> bool:
    """Whether it has all partitions, and has read each of them as far as it goes."""
    places = consumer.position(consumer.assignment())
    ends = (consumer.get_watermark_offsets(place, cached=True) for place in places)
    return len(places) == PARTITIONS and all(
        place.offset == end[1] for place, end in zip(places, ends, strict=True)
    )


def run_gapless(side: Side, bootstrap: str, billed: int) -> None:
    consumer = Consumer(
        bootstrap,
        group=side.group,
        topics=[side.orders],
        semantics="exactly-once",
        store=SqliteStore(str(side.bills)),
        properties={"session.timeout.ms": _SESSION_MS},
    )

    def bill(record: Record, tx: sqlite3.Connection) -> None:
        tx.execute(_INSERT, (record.partition, record.offset, record.value))

    def tell_often() -> None:
        while True:
            tell(billed=billed + consumer.counters.handled)
            time.sleep(TELL_EVERY_S)

    threading.Thread(target=tell_often, daemon=True).start()
    consumer.run(bill)


def main() -> None:
    given = json.loads(sys.argv[1])
    commands()  # there are none: but it ends with its parent
    side, bootstrap = Side(given["side"], Path(given["folder"])), given["bootstrap"]
    with sqlite3.connect(side.bills) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(_TABLE)
        (billed,) = database.execute("SELECT count(*) FROM bills").fetchone()
    database.close()
    run = run_everyday if side.name == EVERYDAY else run_gapless
    run(side, bootstrap, billed)


if __name__ == "__main__":
    main()
