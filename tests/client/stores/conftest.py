"""The databases of these tests: real servers, started once, and empty for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.client.stores.port import Store
from gapless.testing.postgres import Postgres
from gapless.testing.redis import Redis
from tests.client.stores.kits import GROUP, Kit, PostgresKit, RedisKit, SqliteKit
from tests.conftest import Require


@pytest.fixture(scope="session")
def postgres(require: Require) -> Iterator[Postgres]:
    """A server that everybody shares: who wants to kill one starts its own."""
    require("postgres")
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(require: Require) -> Iterator[Redis]:
    """A server that everybody shares: who wants to kill one starts its own."""
    require("redis")
    with Redis() as server:
        yield server


def emptied(server: Postgres) -> str:
    """The address of the server's database, which is empty now."""
    import psycopg

    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return server.dsn


@pytest.fixture
def sqlite_kit(tmp_path: Path) -> SqliteKit:
    return SqliteKit(tmp_path / "store.db")


@pytest.fixture
def postgres_kit(postgres: Postgres) -> PostgresKit:
    return PostgresKit(emptied(postgres))


@pytest.fixture
def redis_kit(redis_server: Redis, tmp_path: Path) -> Iterator[RedisKit]:
    kit = RedisKit(redis_server.url, tmp_path / "effects")
    kit.client.flushall()
    yield kit
    kit.close()


@pytest.fixture(params=["sqlite", "postgres"])
def transactional(request: pytest.FixtureRequest) -> Kit:
    """Each store whose handlers share its transaction."""
    kit: Kit = request.getfixturevalue(f"{request.param}_kit")
    return kit


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def kit(request: pytest.FixtureRequest) -> Kit:
    """Each store."""
    kit: Kit = request.getfixturevalue(f"{request.param}_kit")
    return kit


class OpenStores:
    """Opens stores and closes them when the test is over."""

    def __init__(self) -> None:
        self.opened: list[Store] = []

    def __call__(self, store: Store) -> Store:
        self.opened.append(store)
        store.open(GROUP)
        return store


@pytest.fixture
def opened() -> Iterator[OpenStores]:
    """`opened(store)`: the store, open for the group."""
    stores = OpenStores()
    yield stores
    for store in stores.opened:
        store.close()
