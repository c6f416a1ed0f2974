"""Two output clusters: `output` runs a test on the embedded broker and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.sinks.kafka.idling import Idling
from tests.servers import ApacheBehindProxy

_NEEDS_A_MINUTE = "test_markers_of_an_idle_pipeline_do_not_expire"


@pytest.fixture(params=["embedded", "apache"])
def output(request: pytest.FixtureRequest) -> str:
    """Where to reach the cluster."""
    if request.param == "embedded":
        return str(request.getfixturevalue("bootstrap"))
    apache: ApacheBehindProxy = request.getfixturevalue("apache")
    return apache.bootstrap


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
