"""One broker per file for tests that leave it as it was, and brokers of their own for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gapless.testing.zookeeper import ZooKeeper
from tests.broker.process import Broker

BrokerMaker = Callable[..., Broker]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker that the tests of a file share."""
    with Broker() as shared:
        yield shared


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeper]:
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: ZooKeeper) -> ZooKeeper:
    """One server for all tests; each has a path of its own there."""
    zookeeper_server.start()  # a test that failed may have left it dead
    return zookeeper_server


@pytest.fixture
def start_broker() -> Iterator[BrokerMaker]:
    """Starts brokers that end with the test."""
    with ExitStack() as brokers:

        def start(*arguments: Any, **options: Any) -> Broker:
            return brokers.enter_context(Broker(*arguments, **options))

        yield start
