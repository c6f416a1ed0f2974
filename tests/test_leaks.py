"""What tests/leaks.py finds, and what it does not mind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_conftest import run_pytest

CONFTEST = """
import pytest
from confluent_kafka import Producer

pytest_plugins = ["tests.leaks"]

def pytest_configure():
    from tests import leaks
    leaks.END_S = 0.2

def client():
    return Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})

@pytest.fixture
def new_client():
    return client

@pytest.fixture
def returned_client():
    return client()

@pytest.fixture(scope="session")
def client_of_session():
    return client()
"""
LEAVES_A_CLIENT = """
kept = []

def test_leaves(new_client):
    kept.append(new_client())

def test_another(): ...
"""
LEAVES_A_THREAD = """
import threading, time

def test_leaves():
    threading.Thread(target=time.sleep, args=(2.0,), name="left-behind").start()
"""
LEAVES_NOTHING = """
import gc, logging, threading, time

gc.disable()  # so that cycles stay

def test_of_session(client_of_session): ...

def test_closes(new_client):
    new_client()

def test_cycle(new_client):
    cycle = [new_client()]
    cycle.append(cycle)

def test_thread_that_is_ending():
    threading.Thread(target=time.sleep, args=(0.05,)).start()

def test_returned_by_a_fixture(returned_client):
    try:
        fail_with(returned_client)
    except ValueError as error:
        logging.warning("its traceback holds the client, and pytest holds the log: %s", error)

def fail_with(client):
    raise ValueError
"""
FAILS = """
kept = []

def test_fails(new_client):
    kept.append(new_client())
    assert False
"""


def run(folder: Path) -> str:
    return run_pytest(folder, "-ra", conftest=CONFTEST)


@pytest.mark.parametrize(
    ("source", "what"),
    [(LEAVES_A_CLIENT, "1 clients of librdkafka"), (LEAVES_A_THREAD, "thread left-behind of Python")],
    ids=["client", "thread"],
)
def test_the_file_at_fault_is_named_and_no_other(tmp_path: Path, source: str, what: str) -> None:
    (tmp_path / "test_a.py").write_text(LEAVES_NOTHING)
    (tmp_path / "test_b.py").write_text(source)
    (tmp_path / "test_c.py").write_text(LEAVES_NOTHING)
    printed = run(tmp_path)
    assert "1 error" in printed
    assert f"{tmp_path / 'test_b.py'} left open: {what}" in printed


def test_the_holder_of_a_client_is_described(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(LEAVES_A_CLIENT)
    assert "a Producer referred to by [" in run(tmp_path)


def test_a_failed_test_is_not_blamed_for_what_it_left(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(FAILS)
    (tmp_path / "test_b.py").write_text(LEAVES_NOTHING)
    printed = run(tmp_path)
    assert "1 failed, 5 passed" in printed
    assert "left open" not in printed
