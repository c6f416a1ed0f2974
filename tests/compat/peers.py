"""The brokers that the tests run against, chosen by `--peer`, and what tests may expect of each.

embedded   one broker of Gapless
cluster    three brokers of Gapless: topics have three replicas, of which two must be in sync
apache     one node of Apache Kafka, from its jars
HOST:PORT  brokers that are already running
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from gapless.testing.apache_kafka import ApacheKafka
from gapless.testing.broker import EmbeddedBroker

DEFAULT_PEER = "embedded"

# Short intervals: no test shall wait for minutes until retention is applied, or a dead member is noticed.
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
    # How often it looks for transactions that have timed out; Gapless has a timer for each.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


class Peer(NamedTuple):
    """The brokers under test, and what tests may expect of them."""

    bootstrap: str
    """The addresses of all brokers."""
    replicas: int = 1
    """How many replicas a topic has that does not say."""
    min_insync_replicas: int = 1
    """How many of them must be in sync for acks=all, if the topic does not say."""
    data_dirs: Mapping[int, Path] = {}
    """Each broker's data folder, by the broker's id. Empty if tests cannot read them."""


@contextmanager
def _embedded(folder: Path) -> Iterator[Peer]:
    with EmbeddedBroker(folder / "data", config=SETTINGS) as broker:
        yield Peer(broker.bootstrap, data_dirs={1: broker.data_dir / "broker-1"})


@contextmanager
def _cluster(folder: Path) -> Iterator[Peer]:
    from gapless.testing.cluster import Cluster  # slow, and every run of pytest imports this module

    with Cluster(settings=SETTINGS, proxy=False, folder=folder) as cluster:
        data_dirs = {number: folder / "data" / f"broker-{number}" for number in cluster.brokers}
        yield Peer(cluster.bootstrap, replicas=3, min_insync_replicas=2, data_dirs=data_dirs)


@contextmanager
def _apache(_folder: Path) -> Iterator[Peer]:
    with ApacheKafka(heap_mb=512, light=True, properties=APACHE_SETTINGS) as kafka:
        yield Peer(kafka.bootstrap, data_dirs={1: kafka.data_folder})


PEERS: dict[str, Callable[[Path], AbstractContextManager[Peer]]] = {
    "embedded": _embedded,
    "cluster": _cluster,
    "apache": _apache,
}


CHOICES = f"{', '.join(PEERS)} or HOST:PORT"


def peer_name(text: str) -> str:
    """Return the value of `--peer`, or raise ArgumentTypeError if it names no peer."""
    if text in PEERS or re.fullmatch(r"[^:,]+:\d+(,[^:,]+:\d+)*", text):
        return text
    raise argparse.ArgumentTypeError(f"no peer named {text!r}: choose {CHOICES}")


@contextmanager
def running_peer(name: str, folder: Path) -> Iterator[Peer]:
    """Start the peer, with its data in `folder`, and stop it after the block."""
    if name in PEERS:
        with PEERS[name](folder) as peer:
            yield peer
    else:
        yield Peer(name)
