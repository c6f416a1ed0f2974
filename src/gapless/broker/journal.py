"""The metadata journal: an append-only list of records with compare-and-set, in one SQLite file.

Every committed proposal is one row. WAL with synchronous=FULL: once `append` returns, a power cut cannot take
it back. The file is the cluster's memory of its shape; the data itself lies in the logs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from gapless.core.records import MetadataRecord, from_json, to_json

COMPACT_AFTER_ROWS = 200

_SCHEMA = """
create table if not exists journal (
    version integer primary key,
    records text not null
) strict
"""


class JournalMoved(Exception):
    """Somebody else wrote first: decide again on the newer state."""


class JournalFailed(Exception):
    """The journal cannot be read or written; the message says where and why."""


class Journal:
    """One broker's view of the journal. Methods may run on any one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = full")
            self._db.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise JournalFailed(f"cannot open the metadata journal {path}: {error}") from error

    def read(self) -> tuple[int, list[MetadataRecord]]:
        """All records, and the version that they bring an image to."""
        try:
            rows = self._db.execute("select version, records from journal order by version").fetchall()
            records = [from_json(values) for _, text in rows for values in json.loads(text)]
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            raise JournalFailed(
                f"the metadata journal {self.path} is damaged ({error}); restore it from a backup"
            ) from error
        return (rows[-1][0] if rows else 0), records

    def append(self, expected_version: int, records: Sequence[MetadataRecord]) -> int:
        """Write records if the journal is still at `expected_version`; the new version."""
        text = json.dumps([to_json(record) for record in records], separators=(",", ":"))
        try:
            self._db.execute("begin immediate")
            try:
                (version,) = self._db.execute("select coalesce(max(version), 0) from journal").fetchone()
                if version != expected_version:
                    raise JournalMoved(f"the journal is at version {version}, not {expected_version}")
                self._db.execute("insert into journal values (?, ?)", (version + 1, text))
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:  # a full disk may have rolled it back already
                    self._db.execute("rollback")
                raise
        except sqlite3.Error as error:
            raise JournalFailed(f"cannot write the metadata journal {self.path}: {error}") from error
        return expected_version + 1

    def compact(self, version: int, records: Sequence[MetadataRecord]) -> None:
        """Replace the history up to `version` by records that lead to the same image, once it has grown."""
        try:
            (rows,) = self._db.execute("select count(*) from journal").fetchone()
            if rows < COMPACT_AFTER_ROWS:
                return
            text = json.dumps([to_json(record) for record in records], separators=(",", ":"))
            with self._db:
                self._db.execute("begin immediate")
                self._db.execute("delete from journal where version <= ?", (version,))
                self._db.execute("insert into journal values (?, ?)", (version, text))
        except sqlite3.Error as error:
            raise JournalFailed(f"cannot compact the metadata journal {self.path}: {error}") from error

    def close(self) -> None:
        """Release the file."""
        self._db.close()
