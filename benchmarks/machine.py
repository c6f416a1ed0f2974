"""What the figures were measured on, without anything that tells whose machine it is."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka

from benchmarks.brokers import KAFKA_HEAP_MB
from gapless import __version__
from gapless.jars import jar_paths


def describe(*, with_peer: bool) -> dict[str, str | int]:
    """Cores, memory, versions and the day."""
    found: dict[str, str | int] = {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count() or 0,
        "cpu": _cpu_model(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": platform.system(),
        "python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "gapless": __version__,
    }
    if with_peer:
        found["kafka"] = _kafka_version()
        found["kafka_heap_mb"] = KAFKA_HEAP_MB
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _kafka_version() -> str:
    versions = [
        path.stem.rpartition("-")[2] for path in jar_paths("kafka") if path.name.startswith("kafka_2.13-")
    ]
    return versions[0] if versions else "unknown"
