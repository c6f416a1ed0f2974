"""A shop of the demo: sends numbered orders at a steady rate, and goes on where it was when it was killed.

    python -m gapless.demo.producing '{"side": "gapless", "source": "shop-1", "bootstrap": ..., ...}'

The everyday one sends with acks=1 and remembers in a file, each second, up to where all was acknowledged.
Identities and promises are what an audit goes by; everyday clients have none, so that they are added here.
The other one is a Gapless producer. What it has stored in its spool will be sent: it goes on behind that.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as BareProducer

from gapless.client.formats import (
    SEQUENCE_HEADER,
    SOURCE_HEADER,
    Interval,
    Seal,
    sequence_header,
    source_header,
)
from gapless.client.producing.producer import Producer
from gapless.client.producing.receipts import Receipt
from gapless.client.spool.inspect import status
from gapless.demo.sides import EVERYDAY, PARTITIONS, Side, key_of, order, partition_of
from gapless.demo.telling import NowAndThen, commands, tell
from gapless.errors import GaplessError
from gapless.testing.quiet import quiet_logger

_INCARNATION = b"everyday"
_FLUSH_S = 60.0
_AT_ONCE = 100


class Pace:
    """So many a second."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._began_s = time.monotonic()
        self._count = 0

    def next(self) -> None:
        """Wait for the next one's time."""
        if self._count % _AT_ONCE == 0:
            early_s = self._began_s + self._count / self._per_s - time.monotonic()
            if early_s > 0:
                time.sleep(early_s)
        self._count += 1


class EverydayShop:
    """Sends with acks=1, without idempotence."""

    def __init__(self, side: Side, source: str, bootstrap: str) -> None:
        self._side = side
        self._source = source
        self._header = source_header(source, _INCARNATION)
        self._progress = side.progress_of(source)
        self._all_before = int(self._progress.read_text()) if self._progress.exists() else 0
        self._acknowledged: set[int] = set()
        self._unsealed: list[int] = []
        usual = {"bootstrap.servers": bootstrap, "logger": quiet_logger()}
        self._producer = BareProducer({**usual, "acks": 1, "linger.ms": 5})
        self._ledger = BareProducer({**usual, "enable.idempotence": True})

    def run(self, orders: int, pace: Pace) -> None:
        told, saved = NowAndThen(), NowAndThen(1.0)
        for number in range(self._all_before, orders):
            pace.next()
            self._send(number)
            self._producer.poll(0)
            if told.is_due():
                self._tell()
                self._seal()
            if saved.is_due():
                self._save()
        self._producer.flush(_FLUSH_S)
        self._seal()
        self._tell()
        self._ledger.flush(_FLUSH_S)

    def _send(self, number: int) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            (SOURCE_HEADER, self._header),
            (SEQUENCE_HEADER, sequence_header(number // PARTITIONS)),
        ]
        while True:
            try:
                self._producer.produce(
                    self._side.orders,
                    order(self._source, number),
                    key=key_of(self._source, number),
                    partition=partition_of(number),
                    headers=headers,
                    on_delivery=partial(self._on_delivery, number),
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def _on_delivery(self, number: int, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            tell(problem=f"an order was given up: {error.str()}")
            return
        self._unsealed.append(number)
        self._acknowledged.add(number)
        while self._all_before in self._acknowledged:
            self._acknowledged.remove(self._all_before)
            self._all_before += 1

    def _tell(self) -> None:
        tell(acknowledged=self._all_before + len(self._acknowledged))

    def _save(self) -> None:
        new = self._progress.with_suffix(".new")
        new.write_text(str(self._all_before))
        new.replace(self._progress)

    def _seal(self) -> None:
        """Promise what was acknowledged."""
        numbers, self._unsealed = sorted(self._unsealed), []
        if not numbers:
            return
        by_partition: dict[int, list[Interval]] = defaultdict(list)
        for number in numbers:
            partition, sequence = partition_of(number), number // PARTITIONS
            runs = by_partition[partition]
            if runs and runs[-1].last + 1 >= sequence:
                runs[-1] = runs[-1]._replace(last=sequence)
            else:
                runs.append(Interval(self._side.orders, partition, sequence, sequence))
        intervals = tuple(run for runs in by_partition.values() for run in runs)
        seal = Seal(self._source, _INCARNATION, time.time_ns() // 1_000_000, "interval", intervals)
        self._ledger.produce(self._side.ledger, seal.to_bytes(), key=seal.key())
        self._ledger.poll(0)


def run_gapless(side: Side, source: str, bootstrap: str, orders: int, pace: Pace) -> None:
    spool, told = side.progress_of(source), NowAndThen()

    def on_delivery(number: int, error: GaplessError | None, _: Receipt) -> None:
        if error is not None:
            tell(problem=str(error))
        elif told.is_due() or number + 1 == orders:  # they come in order
            tell(acknowledged=number + 1)

    with Producer(bootstrap, source, "exactly-once", spool=spool, seal_every_s=2) as producer:
        for number in range(status(spool).stored, orders):
            pace.next()
            producer.send(
                side.orders,
                order(source, number),
                key=key_of(source, number),
                partition=partition_of(number),
                on_delivery=partial(on_delivery, number),
            )
        left = producer.flush(_FLUSH_S)
        tell(acknowledged=status(spool).stored - left)


def main() -> None:
    given = json.loads(sys.argv[1])
    commands()  # there are none: but it ends with its parent
    pace = Pace(given["per_s"])
    side, source = Side(given["side"], Path(given["folder"])), given["source"]
    if side.name == EVERYDAY:
        EverydayShop(side, source, given["bootstrap"]).run(given["orders"], pace)
    else:
        run_gapless(side, source, given["bootstrap"], given["orders"], pace)


if __name__ == "__main__":
    main()
