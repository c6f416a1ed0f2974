"""What all tests share. `tests/services.py` says what a test needs, `tests/servers.py` starts it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.compat.peers import CHOICES, DEFAULT_PEER, peer_name

pytest_plugins = ["tests.services", "tests.servers", "tests.leaks"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add all options. pytest ignores options of tests/compat/conftest.py unless it is given that folder."""
    parser.addoption(
        "--peer",
        type=peer_name,
        default=os.environ.get("GAPLESS_COMPAT_PEER", DEFAULT_PEER),
        help=f"which brokers tests/compat runs against: {CHOICES}",
    )


# Property tests are not judged by the clock: the machine may be busy.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A shell that runs tests in the background has SIGINT ignored, which every child would inherit: then none of
# them could be interrupted, and some tests do just that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """Python's own handler, whatever others have set: Spark sets one that cancels jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
