"""One broker per file for tests that leave it as it was, and brokers of their own for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.broker.process import Broker

BrokerMaker = Callable[..., Broker]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker that the tests of a file share."""
    with Broker() as shared:
        yield shared


@pytest.fixture
def start_broker() -> Iterator[BrokerMaker]:
    """Starts brokers that end with the test."""
    with ExitStack() as brokers:

        def start(*arguments: Any, **options: Any) -> Broker:
            return brokers.enter_context(Broker(*arguments, **options))

        yield start
