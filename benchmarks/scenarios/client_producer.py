"""The producer without a spool against bare confluent-kafka with the same settings, on the same broker.

    python -m benchmarks.scenarios.client_producer [--records N] [--rounds N] [--quick] [--out FILE]

Every record of 100 bytes has a callback that counts, on both sides; the bare loop calls `poll(0)` after each
record, as confluent-kafka's documentation does. The row to reach compares with a loop that makes the same two
headers; another shows what they cost. Ours are sent one by one and many at once, without a spool and with
one. Time is from the first record to the last callback. Each run is a process of its own; rounds alternate.
CPU time is the client's, all threads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as BareProducer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.report import number
from benchmarks.statistics import at_least
from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, sequence_header, source_header
from gapless.client.producing.producer import Producer
from gapless.client.producing.receipts import Receipt
from gapless.errors import GaplessError
from gapless.testing.broker import EmbeddedBroker

TARGET = at_least(0.8)
TOPIC = "produced"
PARTITIONS = 3
RECORD_BYTES = 100
MANY_RECORDS = 1_000
BUFFER_MESSAGES = 100_000
BUFFER_MS = 5
BARE, BARE_WITH_HEADERS = "bare", "bare, same two headers"
PRODUCER, ALWAYS, EXACTLY_ONCE = "Producer", "Producer, spool always", "Producer, exactly-once"
MANY = f", {MANY_RECORDS:,} at once"
CONTENDERS = (
    *(BARE, BARE_WITH_HEADERS, PRODUCER, PRODUCER + MANY),
    *(ALWAYS, ALWAYS + MANY, EXACTLY_ONCE, EXACTLY_ONCE + MANY),
)
_MODULE = "benchmarks.scenarios.client_producer"
_ROOT = Path(__file__).resolve().parents[2]
_FLUSH_S = 300.0


class RunFailed(GaplessError):
    """Records were not acknowledged: a figure for them would be worth nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run."""

    records: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.records / self.wall_s

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.records * 1e6


class _Count:
    """Callbacks of one run."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0

    def bare(self, error: KafkaError | None, _message: Message) -> None:
        self.done += 1
        self.failed += error is not None

    def ours(self, error: GaplessError | None, _receipt: Receipt) -> None:
        self.done += 1
        self.failed += error is not None

    def wait_for(self, records: int) -> None:
        give_up_at = time.monotonic() + _FLUSH_S
        while self.done < records and time.monotonic() < give_up_at:
            time.sleep(0.0005)
        if self.done != records or self.failed:
            raise RunFailed(f"{self.done} of {records} records were reported, {self.failed} of them failed")


def run_bare(bootstrap: str, records: int, with_headers: bool) -> Run:
    """As a careful program does it by hand."""
    producer = BareProducer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": BUFFER_MS,
            "queue.buffering.max.messages": BUFFER_MESSAGES,
            "log_level": 3,
        }
    )
    count, value = _Count(), b"x" * RECORD_BYTES
    made_by = (SOURCE_HEADER, source_header("benchmark", b"8 bytes."))
    producer.produce(TOPIC, value)
    producer.flush()
    began, cpu_began = time.perf_counter(), time.process_time()
    for sequence in range(records):
        while True:
            try:
                if with_headers:
                    producer.produce(
                        TOPIC,
                        value,
                        on_delivery=count.bare,
                        headers=[made_by, (SEQUENCE_HEADER, sequence_header(sequence))],
                    )
                else:
                    producer.produce(TOPIC, value, on_delivery=count.bare)
                break
            except BufferError:
                producer.poll(0.005)
        producer.poll(0)
    producer.flush(_FLUSH_S)
    count.wait_for(records)
    return Run(records, time.perf_counter() - began, time.process_time() - cpu_began)


def run_producer(records: int, make: Callable[[], Producer], at_once: int) -> Run:
    """The same through our producer; with `send_many` if more than one is sent at once."""
    count, value = _Count(), b"x" * RECORD_BYTES
    with make() as producer:
        producer.send(TOPIC, value, wait=True)
        began, cpu_began = time.perf_counter(), time.process_time()
        if at_once == 1:
            for _ in range(records):
                producer.send(TOPIC, value, on_delivery=count.ours)
        for left in range(records, 0, -at_once) if at_once > 1 else ():
            producer.send_many(TOPIC, [value] * min(left, at_once), on_delivery=count.ours)
        producer.flush(_FLUSH_S)
        count.wait_for(records)
        return Run(records, time.perf_counter() - began, time.process_time() - cpu_began)


def run_one(contender: str, bootstrap: str, records: int) -> Run:
    if contender in (BARE, BARE_WITH_HEADERS):
        return run_bare(bootstrap, records, contender == BARE_WITH_HEADERS)
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "spool"
        make: dict[str, Callable[[], Producer]] = {
            PRODUCER: lambda: Producer(
                bootstrap, "benchmark", buffer_ms=BUFFER_MS, buffer_messages=BUFFER_MESSAGES, seal_every_s=0
            ),
            ALWAYS: lambda: Producer(
                bootstrap, "benchmark", spool=spool, spool_mode="always", seal_every_s=0
            ),
            EXACTLY_ONCE: lambda: Producer(bootstrap, "benchmark", "exactly-once", spool=spool),
        }
        at_once = MANY_RECORDS if contender.endswith(MANY) else 1
        return run_producer(records, make[contender.removesuffix(MANY)], at_once)


def measure(records: int, rounds: int, tell: Callable[[str], None] = lambda _: None) -> dict[str, list[Run]]:
    """All contenders in turn, forwards and backwards, a topic and a process for each run."""
    runs: dict[str, list[Run]] = {contender: [] for contender in CONTENDERS}
    for round_number in range(rounds):
        with EmbeddedBroker() as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 3})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
            for contender in CONTENDERS if round_number % 2 == 0 else CONTENDERS[::-1]:
                tell(f"round {round_number + 1} of {rounds}: {contender}")
                answer = subprocess.run(
                    [sys.executable, "-m", _MODULE, "--run", contender, broker.bootstrap, str(records)],
                    cwd=_ROOT,
                    check=True,
                    capture_output=True,
                    text=True,
                )
                runs[contender].append(Run(**json.loads(answer.stdout)))
    return runs


def ratio(runs: dict[str, list[Run]], of: str, to: str, cpu: bool = False) -> float:
    """Median over rounds; more than 1 means that `of` is the better one."""
    pairs = zip(runs[of], runs[to], strict=True)
    return median(b.cpu_us / a.cpu_us if cpu else a.rate / b.rate for a, b in pairs)


def report(runs: dict[str, list[Run]]) -> Table:
    table = Table(
        "", "records/s", "CPU µs/record", "rate against same headers", "CPU", "rate against bare", ""
    )
    for contender, measured in runs.items():
        with_headers = ratio(runs, contender, BARE_WITH_HEADERS)
        met = "" if contender != PRODUCER else "ok" if TARGET.met_by(with_headers) else "short"
        table.add_row(
            contender,
            number(median(each.rate for each in measured)),
            f"{median(each.cpu_us for each in measured):.2f}",
            f"{with_headers:.2f} ×",
            f"{ratio(runs, contender, BARE_WITH_HEADERS, cpu=True):.2f} ×",
            f"{ratio(runs, contender, BARE):.2f} ×",
            met,
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The producer against bare confluent-kafka.")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few records: shows that it runs")
    parser.add_argument("--out", type=Path, help="also write all values as JSON")
    parser.add_argument(
        "--run", nargs=3, metavar=("CONTENDER", "BOOTSTRAP", "RECORDS"), help=argparse.SUPPRESS
    )
    given = parser.parse_args(arguments)
    if given.run is not None:
        contender, bootstrap, records = given.run
        print(json.dumps(asdict(run_one(contender, bootstrap, int(records)))))
        return
    console = Console(width=None if sys.stdout.isatty() else 140)
    records, rounds = (5_000, 1) if given.quick else (given.records, given.rounds)
    runs = measure(records, rounds, lambda said: console.print(said, style="dim"))
    console.print(report(runs))
    if given.out is not None:
        values = {name: [asdict(each) for each in measured] for name, measured in runs.items()}
        content = {"machine": machine.describe(with_peer=False), "records": records, "runs": values}
        given.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
