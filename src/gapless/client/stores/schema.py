"""The tables of the stores in SQL databases, and the statements that both databases understand."""

from __future__ import annotations

from typing import NamedTuple

OFFSETS = """
CREATE TABLE IF NOT EXISTS gapless_offsets (
    group_name TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next_offset BIGINT,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (group_name, topic, partition)
)"""
MARKS = """
CREATE TABLE IF NOT EXISTS gapless_marks (
    group_name TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    source TEXT NOT NULL,
    incarnation {bytes} NOT NULL,
    first BIGINT NOT NULL,
    last BIGINT NOT NULL,
    touched_at BIGINT NOT NULL,
    PRIMARY KEY (group_name, topic, partition, source, incarnation, first)
)"""
SEEN = """
CREATE TABLE IF NOT EXISTS gapless_seen (
    group_name TEXT NOT NULL,
    key {bytes} NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (group_name, key)
)"""


def table_definitions(bytes_type: str, suffix: str = "") -> tuple[str, ...]:
    """The tables, for a database that calls strings of bytes so."""
    return tuple(table.format(bytes=bytes_type) + suffix for table in (OFFSETS, MARKS, SEEN))


class Statements(NamedTuple):
    """The SQL that both databases understand; only placeholders and the locking of a read differ."""

    take: str
    owner: str
    marks: str
    forget_marks: str
    write_mark: str
    swallow_marks: str
    advance: str
    forget_seen: str

    @classmethod
    def written(cls, placeholder: str, locking: str) -> Statements:
        where = "WHERE group_name = ? AND topic = ? AND partition = ?"
        statements = cls(
            take="INSERT INTO gapless_offsets (group_name, topic, partition, next_offset, epoch)"
            " VALUES (?, ?, ?, NULL, 1) ON CONFLICT (group_name, topic, partition)"
            " DO UPDATE SET epoch = gapless_offsets.epoch + 1 RETURNING epoch, next_offset",
            owner=f"SELECT epoch, next_offset FROM gapless_offsets {where} {locking}",
            marks=f"SELECT source, incarnation, first, last FROM gapless_marks {where}",
            forget_marks=f"DELETE FROM gapless_marks {where} AND (source, incarnation) IN"
            f" (SELECT source, incarnation FROM gapless_marks {where}"
            " GROUP BY source, incarnation HAVING MAX(touched_at) < ?)",
            write_mark="INSERT INTO gapless_marks"
            " (group_name, topic, partition, source, incarnation, first, last, touched_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (group_name, topic, partition, source, incarnation, first)"
            " DO UPDATE SET last = excluded.last, touched_at = excluded.touched_at",
            swallow_marks=f"DELETE FROM gapless_marks {where}"
            " AND source = ? AND incarnation = ? AND first > ? AND first <= ?",
            advance=f"UPDATE gapless_offsets SET next_offset = ? {where} AND epoch = ?",
            forget_seen="DELETE FROM gapless_seen WHERE group_name = ? AND seen_at < ?",
        )
        return cls(*(sql.replace("?", placeholder) for sql in statements))
