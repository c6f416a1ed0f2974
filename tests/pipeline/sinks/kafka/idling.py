"""A pipeline that has nothing to do, where offsets are forgotten after a minute, the least there is."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

from gapless.pipeline.sinks.kafka import KafkaSink
from gapless.pipeline.sinks.port import SinkContext
from gapless.testing.broker import EmbeddedBroker

_RETENTION = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
_KEEP_ALIVE_S = 10.0


class Idling:
    """`kept` is kept alive. Nobody cares for `forgotten`, so it shows that the clock has run."""

    def __init__(self) -> None:
        self._broker = EmbeddedBroker(config=_RETENTION)
        self._broker.start()
        self.since = time.monotonic()
        self.kept, self.forgotten = context("kept"), context("forgotten")
        self.sink = KafkaSink(self._broker.bootstrap, "out", keep_alive_s=_KEEP_ALIVE_S)
        for each in (self.forgotten, self.kept):  # it stays open for the last
            self.sink.open(each)
            self.sink.restore_markers(each, {"orders-0": 17, "orders-1": 18}, 3)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._idle)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._broker.close()

    def _idle(self) -> None:
        while not self._ended.wait(1.0):
            self.sink.idle()


def context(name: str) -> SinkContext:
    """Without Spark: only its names and its id are asked for."""
    folder = SimpleNamespace(id=f"id of {name}")
    return SinkContext(name, "out", cast("Any", folder), cast("Any", None))
