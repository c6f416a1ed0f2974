"""Whom the clients talk to: our broker, Apache Kafka, or a broker that somebody else runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# Looked after often, so that a test of retention need not wait for minutes.
BROKER_SETTINGS = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}


class Peer(NamedTuple):
    """A broker: its address, and its data folder if we may look into it."""

    bootstrap: str
    data_dir: Path | None


@contextmanager
def running_peer(name: str, folder: Path) -> Iterator[Peer]:
    """Start the broker that `--peer` names, with its data in `folder`, and stop it afterwards."""
    if ":" in name:
        yield Peer(name, None)
    else:
        raise ValueError(f"no peer named {name}: choose embedded, apache, or HOST:PORT")
