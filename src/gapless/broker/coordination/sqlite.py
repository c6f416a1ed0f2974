"""Coordination for brokers of one machine: an SQLite file, lock files, and datagrams that say "look again".

    DIR/metadata.sqlite            the journal, a snapshot of its beginning, the cluster's id
    DIR/sessions/broker-N.lock     locked by broker N as long as its process lives
    DIR/sessions/broker-N.sock     where broker N is told that there is something new

WAL with synchronous=FULL: once `append` returns, a power cut cannot take it back. Nothing depends on the
datagrams but how soon a change is seen: the journal is looked at every second anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import sqlite3
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from uuid import uuid4

from gapless.broker.coordination.filesystems import network_file_system
from gapless.broker.coordination.port import (
    COMPACT_AFTER_CHANGES,
    KEPT_CHANGES,
    CannotCoordinate,
    JournalFailed,
    JournalMoved,
    NodeIdInUse,
)
from gapless.core.records import MetadataRecord, from_json, to_json

POLL_S = 1.0
BUSY_TIMEOUT_S = 30.0
LOCK_POLL_S = 0.002
CLAIM_TIMEOUT_S = 0.5
"""Others hold a lock for an instant when they look whether its owner lives."""

_SCHEMA = """
create table if not exists journal (version integer primary key, records text not null) strict;
create table if not exists snapshot (version integer primary key, records text not null) strict;
create table if not exists cluster (name text primary key, value text not null) strict;
"""
_NEWEST = (
    "select max(coalesce((select max(version) from journal), 0), "
    "coalesce((select max(version) from snapshot), 0))"
)


class SqliteCoordination:
    """See `port.Coordination`."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "metadata.sqlite"
        self._sessions = data_dir / "sessions"
        self._node_id = -1
        self._lock: int | None = None
        self._folder: int | None = None
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poll: asyncio.TimerHandle | None = None
        try:
            self._sessions.mkdir(parents=True, exist_ok=True)
            self._folder = os.open(self._sessions, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise CannotCoordinate(f"cannot use the data folder {data_dir}: {error.strerror}") from error
        kind = network_file_system(data_dir)
        if kind is not None:
            self._close_files()
            raise CannotCoordinate(
                f"the data folder {data_dir} is on a network file system ({kind}), whose locks cannot be "
                "relied upon: use a folder on a disk of this machine"
            )

    @cached_property
    def _db(self) -> sqlite3.Connection:
        lock = os.open(self._sessions / "creation.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock_creation(lock)
            db = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S
            )
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = full")
            (tables,) = db.execute("select count(*) from sqlite_master where type = 'table'").fetchone()
            if tables < 3:
                db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise JournalFailed(f"cannot open the metadata journal {self._path}: {error}") from error
        finally:
            os.close(lock)
        return db

    def _lock_creation(self, lock: int) -> None:
        """Wait for other brokers: SQLite does not let several processes create a file at once."""
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while not _try_lock(lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise JournalFailed(
                    f"cannot open the metadata journal {self._path}: another process has been holding "
                    f"{self._sessions / 'creation.lock'} for {BUSY_TIMEOUT_S:g} s: stop it (lslocks shows it)"
                )
            time.sleep(LOCK_POLL_S)

    # -------------------------------------------------------------------------------------- the journal

    @property
    def cluster_id(self) -> str:
        """See `port.Coordination`."""
        # Kafka's form of an id, never beginning with "-": its tools would take that for an option.
        proposed = urlsafe_b64encode(b"\0" + uuid4().bytes[1:]).decode().rstrip("=")
        query = "select value from cluster where name = 'id'"
        try:
            row = self._db.execute(query).fetchone()
            if row is None:
                self._db.execute("insert or ignore into cluster values ('id', ?)", (proposed,))
                row = self._db.execute(query).fetchone()
        except sqlite3.Error as error:
            raise self._damaged(error) from error
        return str(row[0])

    def read(self, after_version: int) -> tuple[int, list[MetadataRecord]]:
        """See `port.Coordination`."""
        try:
            rows = self._rows_after(after_version)
            records = [from_json(values) for _, text in rows for values in json.loads(text)]
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            raise self._damaged(error) from error
        return (rows[-1][0] if rows else after_version), records

    def _rows_after(self, after_version: int) -> list[tuple[int, str]]:
        query = "select version, records from journal where version > ? order by version"
        if after_version > 0:
            rows = self._db.execute(query, (after_version,)).fetchall()
            if rows and rows[0][0] != after_version + 1:
                raise JournalFailed(
                    f"the metadata journal {self._path} has forgotten what followed version {after_version}: "
                    "this broker was away for too long; start it again"
                )
            return rows
        self._db.execute("begin")  # one state of the file for both
        try:
            snapshot = self._db.execute("select version, records from snapshot").fetchall()
            after_version = snapshot[-1][0] if snapshot else 0
            return snapshot + self._db.execute(query, (after_version,)).fetchall()
        finally:
            self._db.execute("commit")

    def append(self, expected_version: int, records: Sequence[MetadataRecord]) -> int:
        """See `port.Coordination`."""
        text = json.dumps([to_json(record) for record in records], separators=(",", ":"))
        try:
            self._db.execute("begin immediate")
            try:
                (version,) = self._db.execute(_NEWEST).fetchone()
                if version != expected_version:
                    raise JournalMoved(f"the journal is at version {version}, not {expected_version}")
                self._db.execute("insert into journal values (?, ?)", (version + 1, text))
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have rolled it back already
                    self._db.execute("rollback")
                raise
        except sqlite3.Error as error:
            raise JournalFailed(f"cannot write the metadata journal {self._path}: {error}") from error
        return expected_version + 1

    def compact(self, version: int, records: Sequence[MetadataRecord]) -> None:
        """See `port.Coordination`."""
        text = json.dumps([to_json(record) for record in records], separators=(",", ":"))
        try:
            with self._db:
                self._db.execute("begin immediate")
                (last,) = self._db.execute("select coalesce(max(version), 0) from snapshot").fetchone()
                if version < last + COMPACT_AFTER_CHANGES:
                    return
                self._db.execute("delete from snapshot")
                self._db.execute("insert into snapshot values (?, ?)", (version, text))
                self._db.execute("delete from journal where version <= ?", (version - KEPT_CHANGES,))
        except sqlite3.Error as error:
            raise JournalFailed(f"cannot compact the metadata journal {self._path}: {error}") from error

    def _damaged(self, error: Exception) -> JournalFailed:
        return JournalFailed(
            f"the metadata journal {self._path} is damaged ({error}); restore it from a backup"
        )

    # ----------------------------------------------------------------------------------------- sessions

    def claim(self, node_id: int) -> None:
        """See `port.Coordination`."""
        path = self._sessions / f"broker-{node_id}.lock"
        deadline = time.monotonic() + CLAIM_TIMEOUT_S
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        while not _try_lock(lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                os.close(lock)
                raise NodeIdInUse(
                    f"broker {node_id} of the data folder {self._sessions.parent} is in use by another "
                    "broker: stop it, or give --data another folder"
                )
            time.sleep(0.01)
        self._lock = lock
        self._node_id = node_id

    def taken(self) -> set[int]:
        """See `port.Coordination`."""
        names = (folder.name.removeprefix("broker-") for folder in self._path.parent.glob("broker-*/"))
        return {int(name) for name in names if name.isdigit()}

    def is_dead(self, node_id: int) -> bool:
        """See `port.Coordination`."""
        try:
            lock = os.open(self._sessions / f"broker-{node_id}.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return _try_lock(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    # ------------------------------------------------------------------------------------------- nudges

    def watch(self, loop: asyncio.AbstractEventLoop, moved: Callable[[], None]) -> None:
        """See `port.Coordination`."""
        self._loop = loop
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        own.setblocking(False)
        name = f"broker-{self._node_id}.sock"
        (self._sessions / name).unlink(missing_ok=True)
        own.bind(self._address(name))
        self._socket = own

        def nudged() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    own.recv(16)
            moved()

        def poll() -> None:
            self._poll = loop.call_later(POLL_S, poll)
            moved()

        loop.add_reader(own, nudged)
        self._poll = loop.call_later(POLL_S, poll)

    def _address(self, name: str) -> str:
        """The path of a socket in the sessions folder, in a form that fits into 108 bytes."""
        path = str(self._sessions / name)
        if len(path) < 100 or not Path("/proc/self/fd").exists():
            return path
        return f"/proc/self/fd/{self._folder}/{name}"

    def announce(self) -> None:
        """See `port.Coordination`."""
        if self._socket is None:
            return
        own = f"broker-{self._node_id}.sock"
        for name in os.listdir(self._sessions):  # noqa: PTH208 -- names are all that is wanted
            if name.endswith(".sock") and name != own:
                # It may be dead, or have enough of these waiting: then it needs no other.
                with contextlib.suppress(OSError):
                    self._socket.sendto(b"!", self._address(name))

    # -------------------------------------------------------------------------------------------- the end

    def interrupt(self) -> None:
        """See `port.Coordination`. A disk answers, or the process hangs with it."""

    def close(self) -> None:
        """See `port.Coordination`."""
        if self._poll is not None:
            self._poll.cancel()
        if self._loop is not None and self._socket is not None:
            self._loop.remove_reader(self._socket)
        if "_db" in self.__dict__:
            self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._socket is not None:
            (self._sessions / f"broker-{self._node_id}.sock").unlink(missing_ok=True)
            self.announce()
            self._socket.close()
            self._socket = None
        self._close_files()

    def _close_files(self) -> None:
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
