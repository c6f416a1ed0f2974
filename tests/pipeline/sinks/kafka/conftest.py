"""Two output clusters: `output` runs a test on the embedded broker and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gapless.testing.apache_kafka import ApacheKafka
from tests.pipeline.sinks.kafka.idling import Idling

_NEEDS_A_MINUTE = "test_markers_of_an_idle_pipeline_do_not_expire"
# How often it looks for transactions that took too long.
_PROPERTIES = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@pytest.fixture(scope="session")
def apache_of_session(require: Callable[[str], None]) -> Iterator[str]:
    require("apache-kafka")
    with ApacheKafka(heap_mb=256, light=True, properties=_PROPERTIES) as node:
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == _NEEDS_A_MINUTE)


@pytest.fixture(scope="session", autouse=True)
def _idling_of_session(request: pytest.FixtureRequest) -> Iterator[Idling | None]:
    if not any(item.name == _NEEDS_A_MINUTE for item in request.session.items):
        yield None
        return
    idling = Idling()
    yield idling
    idling.close()


@pytest.fixture
def idling(_idling_of_session: Idling | None) -> Idling:
    """It has been idle since the tests began."""
    assert _idling_of_session is not None
    return _idling_of_session
