"""The databases of these tests: real servers, started once, and empty for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.client.stores.port import Store
from gapless.testing.postgres import Postgres
from gapless.testing.redis import Redis
from tests.client.stores.kits import GROUP, Kit, PostgresKit, RedisKit, SqliteKit


@pytest.fixture
def sqlite_kit(tmp_path: Path) -> SqliteKit:
    return SqliteKit(tmp_path / "store.db")


@pytest.fixture
def postgres_kit(postgres: Postgres) -> PostgresKit:
    return PostgresKit(postgres.dsn)


@pytest.fixture
def redis_kit(redis_server: Redis, tmp_path: Path) -> Iterator[RedisKit]:
    kit = RedisKit(redis_server.url, tmp_path / "effects")
    kit.client.flushall()
    yield kit
    kit.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def transactional(request: pytest.FixtureRequest) -> Kit:
    """Each store whose handlers share its transaction."""
    kit: Kit = request.getfixturevalue(f"{request.param}_kit")
    return kit


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("redis", marks=pytest.mark.redis),
    ]
)
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
