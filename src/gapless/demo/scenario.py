"""The order of events: brokers, topic, Spark, a million records, SIGKILL in the middle, restart, account."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gapless.demo.carrier import Carrier
from gapless.demo.numbered import ROWS_FILE
from gapless.demo.reader import end_offsets, new_consumer, read_all
from gapless.demo.sender import Sender
from gapless.demo.verdict import Account, Columns, account

TOPIC = "numbers"
OUTAGE_S = 1.0
SPARK_START_TIMEOUT_S = 180.0
CATCH_UP_TIMEOUT_S = 600.0


class Brokers(Protocol):
    """A cluster whose brokers can be killed, and come back at the same address with the same data."""

    bootstrap: str

    @property
    def brokers(self) -> list[int]: ...
    def create_topic(self, name: str, partitions: int) -> None: ...
    def leader(self, topic: str, partition: int) -> int: ...
    def kill(self, broker: int, /) -> None: ...
    def restart(self, broker: int) -> None: ...


class Watcher(Protocol):
    """Who is told how it goes."""

    def line(self, text: str) -> None: ...
    def bar(self, title: str, total: int) -> Callable[[int], None]: ...
    def busy(self, title: str) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How much, and where it is kept."""

    folder: Path
    records: int = 1_000_000
    partitions: int = 4
    size_bytes: int = 100


@dataclass(frozen=True, slots=True)
class Outage:
    """The crash, as it happened."""

    broker: int
    acknowledged_before: int
    waiting: int
    down_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """What was found."""

    sent: int
    acknowledged: int
    failures: dict[str, int]
    outage: Outage | None
    topic: Account
    table: Account
    spark_restarts: list[str]
    seconds: float

    @property
    def clean(self) -> bool:
        return self.topic.clean and self.table.clean and not self.failures


def run_demo(plan: Plan, cluster: Brokers, watcher: Watcher) -> Result:
    """Play the demo on a cluster that is up, in a folder that exists."""
    started_s = time.monotonic()
    watcher.line(f"{len(cluster.brokers)} brokers ready at {cluster.bootstrap}")
    cluster.create_topic(TOPIC, plan.partitions)
    watcher.line(
        f"topic '{TOPIC}': {plan.partitions} partitions on each of them; starting Spark takes some seconds"
    )
    with Carrier(cluster.bootstrap, TOPIC, plan.folder, _records_per_batch(plan)) as carrier:
        with watcher.busy("Spark starts"):
            carrier.wait_for("running", SPARK_START_TIMEOUT_S)
        watcher.line(f"Spark carries the topic into {plan.folder / 'table'}")
        sender, outage = _send_through_a_crash(plan, cluster, watcher, carrier)
        seen = _wait_and_read_back(plan, cluster, watcher, carrier)
        restarts = carrier.restarts
    receipts = Columns.of(sender.receipts)
    return Result(
        sent=plan.records,
        acknowledged=len(sender.receipts),
        failures=dict(sender.failures),
        outage=outage,
        topic=account(plan.records, receipts, seen),
        table=account(plan.records, receipts, Columns.from_file(plan.folder / ROWS_FILE)),
        spark_restarts=restarts,
        seconds=time.monotonic() - started_s,
    )


def _records_per_batch(plan: Plan) -> int:
    """So few that the table grows while records are sent, so many that a batch's fixed cost is small."""
    return max(10_000, plan.records // 6 + 100)  # Spark rounds down by partition: leave no crumbs


def _send_through_a_crash(
    plan: Plan, cluster: Brokers, watcher: Watcher, carrier: Carrier
) -> tuple[Sender, Outage | None]:
    """Send everything; at half a leader is killed, and comes back while sending goes on."""
    sender = Sender(cluster.bootstrap, TOPIC, plan.records, plan.size_bytes)
    show_sent = watcher.bar("acknowledged", plan.records)
    show_carried = watcher.bar("in the table", plan.records)
    crash: Future[Outage] | None = None
    with ThreadPoolExecutor(max_workers=1) as aside:

        def on_progress(acknowledged: int) -> None:
            nonlocal crash
            show_sent(acknowledged)
            show_carried(carrier.carried)
            if crash is None and acknowledged >= plan.records // 2:
                crash = aside.submit(_crash, cluster, sender, watcher)
            elif crash is not None and crash.done():
                crash.result()  # a broker that did not come back ends the demo now, not by a timeout

        sender.send_all(on_progress)
        show_sent(len(sender.receipts))
        return sender, crash.result() if crash is not None else None


def _crash(cluster: Brokers, sender: Sender, watcher: Watcher) -> Outage:
    leader = cluster.leader(TOPIC, 0)
    cluster.kill(leader)
    killed_s = time.monotonic()
    acknowledged, waiting = len(sender.receipts), sender.waiting
    watcher.line(
        f"killed broker {leader}, a leader (SIGKILL), after {acknowledged:,} acknowledgements, "
        f"{waiting:,} in flight"
    )
    time.sleep(OUTAGE_S)
    cluster.restart(leader)
    down_s = time.monotonic() - killed_s
    watcher.line(f"broker {leader} restarted on its port and data, down for {down_s:.1f} s")
    return Outage(leader, acknowledged, waiting, down_s)


def _wait_and_read_back(plan: Plan, cluster: Brokers, watcher: Watcher, carrier: Carrier) -> Columns:
    """Let the table catch up, and read the topic meanwhile."""
    consumer = new_consumer(cluster.bootstrap)
    try:
        ends = end_offsets(consumer, TOPIC)
        carrier.stop_at(ends)
        show_carried = watcher.bar("in the table", plan.records)
        seen = read_all(consumer, TOPIC, ends, watcher.bar("read back", plan.records))
        carrier.wait_for("carried-all", CATCH_UP_TIMEOUT_S, lambda: show_carried(carrier.carried))
        show_carried(carrier.carried)
        with watcher.busy("table is read"):
            carrier.wait_for("finished", CATCH_UP_TIMEOUT_S)
    finally:
        consumer.close()
    return Columns.of(seen)
