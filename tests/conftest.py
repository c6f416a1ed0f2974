"""What all tests share: asking for a service that a machine may lack.

`require("kcat")` skips the test with the reason where the service is missing, and fails it under CI=true:
what CI does not run, nobody runs.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from gapless.errors import GaplessError
from gapless.jars import jar_paths
from gapless.java import find_java
from gapless.testing import postgres, redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Require = Callable[[str], None]

# Property tests are not judged by the clock: the machine may be busy.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A shell that runs tests in the background has SIGINT ignored, which every child would inherit: then none of
# them could be interrupted, and some tests do just that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _why_not_kcat() -> str | None:
    return None if shutil.which("kcat") else "kcat is not installed (Debian: apt install kcat)"


def _why_not_java() -> str | None:
    try:
        find_java()
    except GaplessError as missing:
        return str(missing)
    return None


def _why_not_class_archives() -> str | None:
    missing = _why_not_java()
    if missing is not None:
        return missing
    command = [str(find_java().executable), "-Xshare:on", "-version"]
    has_own = subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    return None if has_own else "this Java has no archive of its own classes, on which another could build"


def _why_not_jars(set_name: str) -> str | None:
    try:
        jar_paths(set_name)
    except GaplessError as missing:
        return str(missing)
    return _why_not_java()


def _why_not_spark() -> str | None:
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: run: pip install 'gapless[spark]'"
    return _why_not_jars("spark")


def _why_not_zookeeper() -> str | None:
    if importlib.util.find_spec("kazoo") is None:
        return "kazoo is not installed: run: pip install 'gapless[zookeeper]'"
    return _why_not_jars("zookeeper")


def _why_not_postgres() -> str | None:
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: run: pip install 'gapless[postgres]'"
    try:
        postgres.programs()
    except GaplessError as missing:
        return str(missing)
    return None


def _why_not_redis() -> str | None:
    if importlib.util.find_spec("redis") is None:
        return "redis-py is not installed: run: pip install 'gapless[redis]'"
    try:
        redis.program()
    except GaplessError as missing:
        return str(missing)
    return None


def _why_not_chromium() -> str | None:
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: run: pip install 'gapless[dev]'"
    return None if shutil.which("chromium") else "Chromium is not installed (Debian: apt install chromium)"


SERVICES: dict[str, Callable[[], str | None]] = {
    "kcat": _why_not_kcat,
    "java": _why_not_java,
    "class-archives": _why_not_class_archives,
    "spark": _why_not_spark,
    "apache-kafka": lambda: _why_not_jars("kafka"),
    "zookeeper": _why_not_zookeeper,
    "postgres": _why_not_postgres,
    "redis": _why_not_redis,
    "chromium": _why_not_chromium,
}


# A test that may take longer than this is one of the longest; most take no more than a second.
_LONG_S = 300


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files with the longest tests first: at the end, all workers would wait for one of them."""
    long_files = {item.path for item in items if _allowed_s(item) > _LONG_S}
    items.sort(key=lambda item: item.path not in long_files)


def _allowed_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None and mark.args else 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What a failed test left open is collected here, in silence: a later test would be blamed for it."""
    failed_before = item.session.testsfailed
    handled = yield
    if item.session.testsfailed > failed_before:
        sys.last_value = sys.last_traceback = None  # they hold the failed test's variables
        if sys.version_info >= (3, 12):
            sys.last_exc = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return handled


@pytest.fixture(scope="session")
def require() -> Require:
    """`require(service)`: go on only where the service can be had."""

    def check(service: str) -> None:
        reason = SERVICES[service]()
        if reason is None:
            return
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run this test, but {reason}", pytrace=False)
        pytest.skip(reason)

    return check


@pytest.fixture(scope="session")
def spark(require: Require) -> Iterator[SparkSession]:
    """The one Spark session of the process: whoever asks for another gets this one, and must not stop it."""
    require("spark")
    from gapless.pipeline import spark_session

    session = spark_session("gapless-tests", short_lived=True)
    yield session
    session.stop()


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """Python's own handler, whatever others have set: Spark sets one that cancels jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
