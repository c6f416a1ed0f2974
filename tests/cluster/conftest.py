"""A cluster for each module; before each test all faults of the one before are undone."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def gapless_cluster_options() -> dict[str, Any]:
    """Hung after one second, out of the in-sync set after one and a half: tests need not wait long."""
    return {
        "brokers": 3,
        "settings": {
            "broker.session.timeout.ms": "1000",
            "broker.heartbeat.interval.ms": "200",
            "replica.lag.time.max.ms": "1500",
        },
    }
