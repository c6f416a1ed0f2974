"""The pytest plugin: a replicated Kafka as a fixture.

    def test_orders_survive(gapless_cluster):
        gapless_cluster.create_topic("orders")
        gapless_cluster.kill(gapless_cluster.leader("orders"))

`gapless_cluster` is a cluster of three brokers, started once for each test module that asks for it. Each test
finds it whole: faults are undone, and brokers that are down started, before the next one begins. Topics
stay, so tests should name theirs differently. A module that wants other settings defines a fixture
`gapless_cluster_options` (scope "module") that returns arguments for `Cluster`. When a test fails, its report
shows what the brokers said.

Nothing of Gapless is imported, and nothing started, before a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gapless.testing.cluster import Cluster

_FIXTURE = "gapless_cluster"


@pytest.fixture(scope="module")
def gapless_cluster_options() -> dict[str, Any]:
    """Arguments for `gapless.testing.Cluster`; a test module may override it."""
    return {"brokers": 3}


@pytest.fixture(scope="module")
def _gapless_cluster_of_module(gapless_cluster_options: dict[str, Any]) -> Iterator[Cluster]:
    from gapless.testing.cluster import Cluster

    with Cluster(**gapless_cluster_options) as cluster:
        yield cluster


@pytest.fixture
def gapless_cluster(_gapless_cluster_of_module: Cluster) -> Cluster:
    """A real replicated Kafka with verbs for faults; whole at the beginning of each test."""
    _gapless_cluster_of_module.repair()
    return _gapless_cluster_of_module


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the brokers' logs with a failure."""
    report = yield
    cluster = getattr(item, "funcargs", {}).get(_FIXTURE)
    if cluster is not None and report.when == "call" and report.failed:
        report.sections.append(("what the brokers said", cluster.logs()))
    return report
