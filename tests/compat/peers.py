"""Whom the clients talk to: our broker, Apache Kafka, or a broker that somebody else runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gapless.testing.apache_kafka import ApacheKafka
from gapless.testing.broker import EmbeddedBroker

# Looked after often, so that a test of retention need not wait for minutes; nor for a dead member of a group.
SETTINGS = {
    "log.retention.check.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "3000",
}
APACHE_SETTINGS = SETTINGS | {
    "log.initial.task.delay.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
}


class Peer(NamedTuple):
    """A broker: its address, and its data folder if we may look into it."""

    bootstrap: str
    data_dir: Path | None


@contextmanager
def running_peer(name: str, folder: Path) -> Iterator[Peer]:
    """Start the broker that `--peer` names, with its data in `folder`, and stop it afterwards."""
    if ":" in name:
        yield Peer(name, None)
    elif name == "embedded":
        with EmbeddedBroker(folder / "data", config=SETTINGS) as broker:
            yield Peer(broker.bootstrap, broker.data_dir / "broker-1")
    elif name == "apache":
        with ApacheKafka(heap_mb=512, light=True, properties=APACHE_SETTINGS) as kafka:
            yield Peer(kafka.bootstrap, kafka.data_folder)
    else:
        raise ValueError(f"no peer named {name}: choose embedded, apache, or HOST:PORT")
