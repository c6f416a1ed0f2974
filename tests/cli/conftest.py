"""A cluster for the session, a way to run commands in this process, and topics that no two tests share."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pytest

from gapless.cli import run
from gapless.testing.broker import EmbeddedBroker
from tests.servers import KEEPS_RECORDS_OF_ANY_AGE, ApacheBehindProxy


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Gapless(Protocol):
    """Runs one command."""

    def __call__(self, *argv: str, stdin: bytes = b"") -> Ran: ...


class NewTopic(Protocol):
    """Creates a topic and returns its name."""

    def __call__(self, partitions: int = 1, *options: str) -> str: ...


@pytest.fixture(scope="session")
def _embedded_bootstrap() -> Iterator[str]:
    with EmbeddedBroker(config=KEEPS_RECORDS_OF_ANY_AGE) as broker:
        yield broker.bootstrap


@pytest.fixture(params=["embedded", "apache"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Our broker, then Apache Kafka: both run as long as the session, whichever a test asks for."""
    if request.param == "embedded":
        return str(request.getfixturevalue("_embedded_bootstrap"))
    apache: ApacheBehindProxy = request.getfixturevalue("apache")
    return apache.bootstrap


@pytest.fixture
def run_gapless(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gapless:
    """`gapless` without a process of its own."""

    def go(*argv: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        code = run(list(argv))
        return Ran(code, *capfd.readouterr())

    return go


@pytest.fixture
def gapless(run_gapless: Gapless, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Gapless:
    """`gapless` with the cluster's address in the environment."""
    monkeypatch.setenv("GAPLESS_BOOTSTRAP", bootstrap)
    return run_gapless


_numbers = itertools.count()


@pytest.fixture
def new_topic(gapless: Gapless) -> NewTopic:
    def create(partitions: int = 1, *options: str) -> str:
        name = f"cli-{next(_numbers)}"
        ran = gapless("topics", "create", name, "--partitions", str(partitions), *options)
        assert ran.code == 0, ran.err
        return name

    return create
