"""Two output clusters: `output` runs a test on the embedded broker and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gapless.testing.apache_kafka import ApacheKafka

# How often it looks for transactions that took too long.
_PROPERTIES = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@pytest.fixture(scope="session")
def apache_of_session(require: Callable[[str], None]) -> Iterator[str]:
    require("apache-kafka")
    with ApacheKafka(heap_mb=256, properties=_PROPERTIES) as node:
        yield node.bootstrap


@pytest.fixture(params=["embedded", pytest.param("apache", marks=pytest.mark.apache)])
def output(request: pytest.FixtureRequest) -> str:
    """Where to reach the cluster."""
    found: str = request.getfixturevalue("bootstrap" if request.param == "embedded" else "apache_of_session")
    return found


@pytest.fixture(scope="session")
def require_spark(require: Callable[[str], None]) -> None:
    """For tests whose Spark runs in a process of its own."""
    require("spark")
