"""The two sides of the demo: the same orders and the same faults, with other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from gapless.client.formats import LEDGER_TOPIC

EVERYDAY, GAPLESS = "everyday", "gapless"
SOURCES = ("shop-1", "shop-2")
PARTITIONS = 3


class Side(NamedTuple):
    """The names and files of one side."""

    name: str
    folder: Path

    @property
    def orders(self) -> str:
        return f"{self.name}-orders"

    @property
    def priced(self) -> str:
        """The topic that the pipeline writes to."""
        return f"{self.name}-priced"

    @property
    def ledger(self) -> str:
        return LEDGER_TOPIC if self.name == GAPLESS else f"{self.name}-ledger"

    @property
    def group(self) -> str:
        return f"{self.name}-billing"

    @property
    def bills(self) -> Path:
        """The consumer's database."""
        return self.folder / f"{self.name}-bills.db"

    @property
    def table(self) -> Path:
        """The pipeline's Delta table."""
        return self.folder / f"{self.name}-table"

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.name}-checkpoint"

    @property
    def page(self) -> Path:
        """The audit's report."""
        return self.folder / f"{self.name}.html"

    def progress_of(self, source: str) -> Path:
        """Where a producer keeps how far it has come: a spool, or a file."""
        return self.folder / f"{self.name}-{source}"


def order(source: str, number: int) -> bytes:
    """What is sent."""
    return json.dumps({"shop": source, "order": number, "cents": number * 7919 % 10_000}).encode()


def key_of(source: str, number: int) -> bytes:
    return f"{source}:{number}".encode()


def partition_of(number: int) -> int:
    return number % PARTITIONS
