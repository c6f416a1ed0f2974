"""A PostgreSQL server for all of these tests, with an empty database for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from gapless.testing.postgres import Postgres

Query = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="session")
def postgres(require: Callable[[str], None]) -> Iterator[Postgres]:
    """Shared: who wants to stop one starts its own."""
    require("postgres")
    with Postgres() as server:
        yield server


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS public, sales CASCADE")
        connection.execute("CREATE SCHEMA public")
    return postgres.dsn


@pytest.fixture
def query(dsn: str) -> Iterator[Query]:
    """Runs a statement in a transaction of its own, and gives its rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:

        def run(statement: str) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

        yield run
