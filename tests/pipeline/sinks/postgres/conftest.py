"""Statements that a test runs in its database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

Query = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture
def query(dsn: str) -> Iterator[Query]:
    """Runs a statement in a transaction of its own, and gives its rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:

        def run(statement: str) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

        yield run
