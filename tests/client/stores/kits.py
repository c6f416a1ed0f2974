"""The same questions for every store: a store with somewhere to write effects, and records to apply."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, sequence_header, source_header
from gapless.client.records import Record, TopicPartition
from gapless.client.stores.port import Store

GROUP = "billing"
FIRST = TopicPartition("orders", 0)
SECOND = TopicPartition("orders", 1)
INCARNATION = b"incarnat"


def record(
    offset: int,
    sequence: int | None = None,
    *,
    partition: TopicPartition = FIRST,
    source: str = "shop",
    incarnation: bytes = INCARNATION,
    key: bytes | None = None,
) -> Record:
    """A record whose value tells what it is; with a sequence it has an identity."""
    headers = []
    if sequence is not None:
        headers = [
            (SOURCE_HEADER, source_header(source, incarnation)),
            (SEQUENCE_HEADER, sequence_header(sequence)),
        ]
    value = f"{source}:{sequence if sequence is not None else offset}".encode()
    return Record(partition.topic, partition.partition, offset, key, value, headers)


def records(sequences: Iterable[int], at: int = 0, partition: TopicPartition = FIRST) -> list[Record]:
    """Records with these sequences at one offset after the other."""
    return [record(at + index, each, partition=partition) for index, each in enumerate(sequences)]


class Kit(Protocol):
    """One database, and how a handler and a test reach it."""

    def store(self, **options: Any) -> Store:
        """A store that is not yet open."""
        ...

    def handler(self, record: Record, transaction: Any) -> None:
        """Write one effect into the transaction."""
        ...

    def effects(self) -> list[bytes]:
        """What was written and committed, in order."""
        ...

    def marks(self) -> list[tuple[int, int]]:
        """The intervals of all sources."""
        ...

    def close(self) -> None: ...


class SqliteKit:
    """An SQLite file."""

    def __init__(self, path: Path) -> None:
        from gapless.client.stores.sqlite import SqliteStore

        self.path = path
        self._make = SqliteStore
        self.query("CREATE TABLE IF NOT EXISTS effects (number INTEGER PRIMARY KEY, body BLOB)")

    def store(self, **options: Any) -> Store:
        return self._make(self.path, **options)

    def handler(self, record: Record, transaction: Any) -> None:
        transaction.execute("INSERT INTO effects (body) VALUES (?)", (record.value,))

    def effects(self) -> list[bytes]:
        return [body for (body,) in self.query("SELECT body FROM effects ORDER BY number")]

    def marks(self) -> list[tuple[int, int]]:
        return self.query("SELECT first, last FROM gapless_marks ORDER BY source, first")

    def close(self) -> None:
        pass

    def query(self, sql: str) -> list[Any]:
        connection = sqlite3.connect(self.path, timeout=30)
        try:
            with connection:
                return connection.execute(sql).fetchall()
        finally:
            connection.close()


class PostgresKit:
    """A database of a PostgreSQL server."""

    def __init__(self, dsn: str) -> None:
        import psycopg

        from gapless.client.stores.postgres import PostgresStore

        self.dsn = dsn
        self._make = PostgresStore
        self._connect = psycopg.connect
        self.query("CREATE TABLE IF NOT EXISTS effects (number BIGSERIAL PRIMARY KEY, body BYTEA)")

    def store(self, **options: Any) -> Store:
        return self._make(self.dsn, **options)

    def handler(self, record: Record, transaction: Any) -> None:
        transaction.execute("INSERT INTO effects (body) VALUES (%s)", (record.value,))

    def effects(self) -> list[bytes]:
        return [bytes(body) for (body,) in self.query("SELECT body FROM effects ORDER BY number")]

    def marks(self) -> list[tuple[int, int]]:
        return self.query("SELECT first, last FROM gapless_marks ORDER BY source, first")

    def close(self) -> None:
        pass

    def query(self, sql: str) -> list[Any]:
        with self._connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []


class RedisKit:
    """A Redis for the marks; the effects are lines of a file, which no Redis can take back."""

    def __init__(self, url: str, file: Path) -> None:
        import redis

        from gapless.client.stores.redis import RedisStore

        self.url = url
        self.file = file
        self.file.touch()
        self._make = RedisStore
        self.client = redis.Redis.from_url(url)

    def store(self, **options: Any) -> Store:
        given: dict[str, Any] = {"expire": "1h", "in_doubt": "stop", "lease": 5, **options}
        return self._make(self.url, **given)

    def handler(self, record: Record, transaction: Any) -> None:
        with self.file.open("ab") as file:
            file.write((record.value or b"") + b"\n")

    def effects(self) -> list[bytes]:
        return self.file.read_bytes().splitlines()

    def marks(self) -> list[tuple[int, int]]:
        keys: list[bytes] = sorted(self.client.scan_iter("gapless:*", _type="zset"))
        found: list[Any] = [self.client.zrange(key, 0, -1, withscores=True) for key in keys]
        return [(int(first), int(last)) for each in found for first, last in each]

    def close(self) -> None:
        self.client.close()
