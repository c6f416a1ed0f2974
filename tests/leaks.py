"""Fails a test file that leaves Kafka clients or threads behind.

A client of librdkafka that is not closed tries to reconnect to its stopped cluster for as long as the process
runs, and prints each attempt. So after the last test of each file, when the fixtures of the file are torn
down, no client may be left that was not there before its first test. What a fixture of the session opened
may stay: the process ends with it.

Each client has exactly one thread with the name `rdk:main`. Other threads of librdkafka do not count: a
client of the session starts more of them when it hears of more brokers. Of Python's daemon threads only
those of Gapless and kafka-python count: other libraries keep theirs. A client that only waits for the garbage
collector is not reported, but collected here, before it prints anything.

After a failed test nothing is reported: its traceback may hold what it had open.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

END_S = 10.0
"""How long clients and threads that are ending may take."""
_LOOK_S = 0.02
_CLIENT_THREAD = "rdk:main"
_OF_CLIENTS = ("gapless-", "kafka-python")


class OpenThings:
    """What may be open."""

    def __init__(self) -> None:
        self.file: Path | None = None
        self.failed_before = 0
        self.known: set[object] = set()
        """Was open before the first test of the file, or belongs to the session."""


_KEY = pytest.StashKey[OpenThings]()


def _open_now() -> set[object]:
    """Return the ids of the threads of librdkafka's clients, and Python's threads."""
    found: set[object] = {
        each for each in threading.enumerate() if not each.daemon or each.name.startswith(_OF_CLIENTS)
    }
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if name.rstrip("\n") == _CLIENT_THREAD:
            found.add(int(task.name))
    return found


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_KEY] = OpenThings()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """What a fixture of the session opens may stay."""
    if fixturedef.scope not in ("session", "package"):
        return (yield)
    before = _open_now()
    result = yield
    request.config.stash[_KEY].known |= _open_now() - before
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    things = item.config.stash[_KEY]
    if item.path != things.file:
        things.file, things.failed_before = item.path, item.session.testsfailed
        things.known |= _open_now()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after pytest has forgotten what the test logged
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    yield
    if nextitem is not None and nextitem.path == item.path:
        return
    if isinstance(item, pytest.Function):
        item.funcargs.clear()  # pytest does so a moment later: until then they hold what fixtures returned
    things = item.config.stash[_KEY]
    left = _open_now() - things.known
    if left:
        left = _wait_until_ended(left)
    things.known |= left  # so that no other file is blamed for it
    if left and item.session.testsfailed == things.failed_before:
        pytest.fail(f"{item.path} left open: {', '.join(_describe(left))}", pytrace=False)


def _wait_until_ended(left: set[object]) -> set[object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    give_up_at = time.monotonic() + END_S
    while (left := left & _open_now()) and time.monotonic() < give_up_at:
        time.sleep(_LOOK_S)
    return left


def _describe(left: Iterable[object]) -> list[str]:
    threads = [each for each in left if isinstance(each, threading.Thread)]
    clients = sum(isinstance(each, int) for each in left)
    said = [f"thread {each.name} of Python" for each in threads]
    if clients:
        said.append(
            f"{clients} clients of librdkafka (close consumers; others end with their last reference)"
        )
        said += _holders()
    return said


def _holders() -> list[str]:
    """Describe the clients of this process, also those of the session, and what refers to each."""
    confluent_kafka = sys.modules.get("confluent_kafka.cimpl")
    if confluent_kafka is None:
        return []
    kinds = (confluent_kafka.Producer, confluent_kafka.Consumer, confluent_kafka._AdminClientImpl)
    found = [each for each in gc.get_objects() if isinstance(each, kinds)]
    return [f"a {type(each).__name__} referred to by {_referrers(each, but=found)}" for each in found]


def _referrers(client: object, but: object) -> list[str]:
    return [
        _short(each)
        for each in gc.get_referrers(client)
        if each is not but and getattr(each, "f_globals", None) is not globals()
    ]


def _short(holder: object) -> str:
    if isinstance(holder, dict):
        return f"a dict with the keys {list(holder)[:8]}"
    return repr(holder)[:100]
