"""What a broker costs before anyone uses it and after everyone has: its start, and its memory."""

from __future__ import annotations

import time

from benchmarks.meters import pss_bytes
from benchmarks.scenarios.step import MILLION, Figure, Step
from benchmarks.session import Session
from benchmarks.sizes import Sizes
from benchmarks.statistics import at_most


def start() -> Step:
    """Must come first: a broker starts once. Kafka's formatting of its disk is not counted."""
    figure = Figure("start", "process start to first acknowledged record", "s", False, at_most(0.2))
    return Step("start", "start", [figure], lambda session: {"start": session.start_and_time_first_ack()})


def memory_idle(sizes: Sizes) -> Step:
    """After the start and a moment's rest."""

    def measure(session: Session) -> dict[str, float]:
        session.start()
        time.sleep(sizes.idle_s)
        return {"idle": pss_bytes(session.broker_pids) / MILLION}

    return Step("memory", "memory (PSS)", [Figure("idle", "idle", "MB", False)], measure, "idle")


def memory_after_load() -> Step:
    """After all that the session did; if it did nothing, after producing the small records."""

    def measure(session: Session) -> dict[str, float]:
        session.consumed_topic()
        return {"loaded": pss_bytes(session.broker_pids) / MILLION}

    figure = Figure("loaded", "after load", "MB", False, at_most(0.15))
    return Step("memory", "memory (PSS)", [figure], measure, "loaded")
