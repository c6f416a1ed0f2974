"""Which services each test needs, and what follows from that.

A test names its services by mark (`@pytest.mark.redis`), fixture or parameter (`params=["redis"]`). Then

- it is skipped with the reason where a service is missing. With `CI=true` it fails instead, because what CI
  does not run, nothing runs;
- it gets the mark `server` if one of its services is a JVM, a server or a browser. `make test-fast` excludes
  these tests;
- if it uses a fixture or parameter of a service, and so a server that tests share, it runs in the same
  process as all other tests of its most expensive service. So a run starts Apache Kafka once, and Spark
  twice, because the audit's tests have a session of their own. All other tests run file by file, including
  those that start a server of their own and have only the mark of its service.

Why not share one server among all processes? Tests cut off, empty and reconfigure their servers. Tests of
one process run one after another, so each finds the server whole; tests of two would disturb each other.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Generator
from functools import cache
from typing import NamedTuple

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

from gapless.errors import GaplessError
from gapless.jars import jar_paths
from gapless.java import find_java
from gapless.testing import postgres, redis

# A test with a longer timeout is one of the longest; most take no more than a second.
LONG_S = 300


class Service(NamedTuple):
    """A program or library that a machine may lack."""

    why_missing: Callable[[], str | None]
    names: Collection[str] = ()  # of fixtures that start it, and of parameters that mean it
    is_server: bool = True


def _failure(find: Callable[[], object]) -> str | None:
    """Return what `find` complains about, or None."""
    try:
        find()
    except GaplessError as missing:
        return str(missing)
    return None


def _library(module: str, extra: str) -> str | None:
    if importlib.util.find_spec(module) is not None:
        return None
    return f"{module} is not installed: run: pip install 'gapless[{extra}]'"


def _program(name: str, package: str) -> str | None:
    return None if shutil.which(name) else f"{name} is not installed (Debian: apt install {package})"


def _jars(set_name: str) -> str | None:
    return _failure(lambda: jar_paths(set_name)) or _failure(find_java)


def _class_archives() -> str | None:
    missing = _failure(find_java)
    if missing is not None:
        return missing
    command = [str(find_java().executable), "-Xshare:on", "-version"]
    has_own = subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    return None if has_own else "this Java has no archive of its own classes, on which another could build"


# In this order: a test that needs several runs with the others of the first one.
SERVICES: dict[str, Service] = {
    "spark": Service(lambda: _library("pyspark", "spark") or _jars("spark")),
    "apache": Service(lambda: _jars("kafka"), {"apache_of_session"}),
    "java_clients": Service(
        lambda: _jars("kafka") or _jars("spark"), {"java", "java-4.3", "java-3.9", "java_4_3", "java_3_9"}
    ),
    "postgres": Service(
        lambda: _library("psycopg", "postgres") or _failure(postgres.programs),
        {"postgres_of_session", "mortal"},
    ),
    "redis": Service(lambda: _library("redis", "redis") or _failure(redis.program), {"redis_server"}),
    "zookeeper": Service(lambda: _library("kazoo", "zookeeper") or _jars("zookeeper")),
    "chromium": Service(
        lambda: _library("playwright", "dev") or _program("chromium", "chromium"), {"browser"}
    ),
    "class_archives": Service(_class_archives),
    "kcat": Service(lambda: _program("kcat", "kcat"), is_server=False),
}


SPARK_OF_AUDIT = "spark of the audit"


@cache
def why_missing(service: str) -> str | None:
    return SERVICES[service].why_missing()


def services_of(item: pytest.Item) -> list[str]:
    """Return the names of the services that a test needs, the most expensive first."""
    shared = _shared_services(item)
    return [name for name in SERVICES if name in shared or item.get_closest_marker(name) is not None]


def _shared_services(item: pytest.Item) -> list[str]:
    """Return the names of the services whose fixtures or parameters a test uses."""
    used = parameters_of(item) | set(getattr(item, "fixturenames", ()))
    return [name for name, service in SERVICES.items() if not used.isdisjoint({name, *service.names})]


def parameters_of(item: pytest.Item) -> set[object]:
    """Return the strings and numbers with which a test is parametrized."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return set()
    return {value for value in item.callspec.params.values() if isinstance(value, str | int)}


def group_of(item: pytest.Item) -> str:
    """Return the name of the group of tests that this one runs with, or an empty string."""
    group = next((name for name in _shared_services(item) if SERVICES[name].is_server), "")
    # With one session, Spark's tests would still run when all others have ended.
    is_audit = group == "spark" and any("audit" in part for part in item.path.parts)
    return SPARK_OF_AUDIT if is_audit else group


def pytest_configure(config: pytest.Config) -> None:
    for name in SERVICES:
        config.addinivalue_line("markers", f"{name}: needs this service")
    config.addinivalue_line("markers", "server: needs a JVM, a server or a browser (set by services.py)")
    config.addinivalue_line(
        "markers", "slow: `make test` leaves it out, because a faster test keeps the same promise"
    )
    config.addinivalue_line("markers", "slow_variants(*parameters): is slow with one of these parameters")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark tests before pytest selects by mark and pytest-xdist reads their groups; then sort them.

    Groups come first and after them files with long tests: work that starts last must be short, or the other
    processes wait for it.
    """
    for item in items:
        services = services_of(item)
        for name in services:
            item.add_marker(name)
        if any(SERVICES[name].is_server for name in services):
            item.add_marker(pytest.mark.server)
        if group_of(item):
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
        variants = item.get_closest_marker("slow_variants")
        if variants is not None and not parameters_of(item).isdisjoint(variants.args):
            item.add_marker(pytest.mark.slow)
    result = yield
    long_files = {item.path for item in items if _timeout_s(item) > LONG_S}
    ranks = ["spark", SPARK_OF_AUDIT, *SERVICES, "", None]
    items.sort(key=lambda item: ranks.index(group_of(item) or ("" if item.path in long_files else None)))
    return result


def _timeout_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None and mark.args else 0.0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling:
    return GroupsThenFiles(config, log)


class GroupsThenFiles(LoadGroupScheduling):
    """Runs a group, or a file's other tests, in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return str(super()._split_scope(nodeid)).partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in services_of(item):
        reason = why_missing(name)
        if reason is None:
            continue
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run this test, but {reason}", pytrace=False)
        pytest.skip(reason)
