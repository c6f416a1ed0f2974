"""Consumes to the end, and dies where it is told: `python -m tests.client.processes.consume JOB`.

The job, as JSON: bootstrap, topics, group, effects (a file of lines, or of SQLite where `store` is true), and
    options   more arguments of Consumer
    die_at    the value of a record
    moment    before-effect, after-effect, after-store-commit (before the group knows)
    pace_s    how long each handler takes
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

from gapless.client.consuming.consumer import Consumer
from gapless.client.records import Record
from gapless.client.stores.sqlite import SqliteStore
from tests.client.processes.common import QUICK, append_line, kill_self, stop_at_end


def main() -> None:
    job = json.loads(sys.argv[1])
    die_at, moment = job.get("die_at", "").encode(), job.get("moment")
    store = None
    if job.get("store"):
        make_table(job["effects"])
        store = SqliteStore(job["effects"])
        if moment == "after-store-commit":
            die_after_apply(store, die_at)

    def handle(record: Record, tx: Any) -> None:
        if record.value == die_at and moment == "before-effect":
            kill_self()
        if tx is None:
            append_line(job["effects"], (record.value or b"").decode())
        else:
            write_effect(tx, record)
        if job.get("pace_s"):
            time.sleep(job["pace_s"])
        if record.value == die_at and moment == "after-effect":
            kill_self()

    # A member with a name of its own takes its place in the group again at once, not after a session timeout.
    properties = {**QUICK, "group.instance.id": "the-one", **job.get("properties", {})}
    consumer = Consumer(
        job["bootstrap"],
        group=job["group"],
        topics=job["topics"],
        store=store,
        properties=properties,
        **job.get("options", {}),
    )
    stop_at_end(consumer)
    consumer.run(handle)


def make_table(path: str) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as connection, connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS effects"
            " (number INTEGER PRIMARY KEY, topic TEXT, partition INTEGER, position INTEGER, value TEXT)"
        )


def write_effect(tx: Any, record: Record) -> None:
    tx.execute(
        "INSERT INTO effects (topic, partition, position, value) VALUES (?, ?, ?, ?)",
        (record.topic, record.partition, record.offset, (record.value or b"").decode()),
    )


def die_after_apply(store: Any, value: bytes) -> None:
    apply: Callable[..., Any] = store.apply

    def apply_and_die(partition: Any, records: Any, *rest: Any) -> Any:
        applied = apply(partition, records, *rest)
        if any(record.value == value for record in records):
            kill_self()
        return applied

    store.apply = apply_and_die


if __name__ == "__main__":
    main()
