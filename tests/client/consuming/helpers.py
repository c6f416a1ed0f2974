"""What tests of the consumer share: writing records, stopping at the end, running processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer as BareProducer

from gapless.client.consuming.consumer import Consumer
from gapless.client.records import Record
from gapless.testing.quiet import quiet_logger
from tests.client.conftest import PATIENCE_S, Kafka
from tests.client.processes.common import stop_at_end

ROOT = Path(__file__).resolve().parents[3]


def values(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def write(
    bootstrap: str,
    topic: str,
    count: int,
    *,
    partitions: int = 1,
    first: int = 0,
    keys: int = 0,
    padding: int = 0,
) -> None:
    """`values(count)`, in turn to each partition; with `keys`, in turn with each of so many keys.

    `padding` bytes follow each value.
    """
    # Without idempotence a batch that is sent again may come behind the next one.
    producer = BareProducer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "logger": quiet_logger()}
    )
    for number, value in enumerate(values(count, first)):
        key = b"k%d" % (number % keys) if keys else None
        producer.produce(
            topic, value + b"." * padding, key, partition=(number % keys if keys else number) % partitions
        )
        if number % 1000 == 999:
            producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def handled(consumer: Consumer, handler: Callable[[Record], None] | None = None) -> list[Record]:
    """Run to the end; all that was handled, in that order."""
    found: list[Record] = []

    def handle(record: Record) -> None:
        if handler is not None:
            handler(record)
        found.append(record)

    stop_at_end(consumer)
    consumer.run(handle)
    return found


def of_each_partition(records: Iterable[Record]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for record in records:
        found.setdefault((record.topic, record.partition), []).append(record.offset)
    return found


def spawn(module: str, **job: Any) -> subprocess.Popen[bytes]:
    """A process of tests/client/processes, with its job as JSON."""
    command = [sys.executable, "-m", f"tests.client.processes.{module}", json.dumps(job)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes], timeout_s: float = PATIENCE_S) -> int:
    """Its exit code; what it said is shown where that matters."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout_s:g} s:\n{err.decode()}") from None
    if process.returncode not in (0, -signal.SIGKILL):
        print(out.decode(), err.decode())
    return process.returncode


def run_process(module: str, **job: Any) -> int:
    return finish(spawn(module, **job))


@contextmanager
def running(module: str, **job: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = spawn(module, **job)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


def member_ids(kafka: Kafka, group: str) -> list[str]:
    """Return the ids of a group's members. A member that was removed rejoins with a new id."""
    found = kafka.admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return sorted(member.member_id for member in found.members)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
