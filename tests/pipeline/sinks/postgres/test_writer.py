"""A task's transaction against other attempts at the same slot: dead, hung, late or in doubt (C8, E6).

Without Spark: a writer is called as a worker would call it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from gapless.errors import Unreachable
from gapless.pipeline.sinks.port import SinkContext, SinkRefused
from gapless.pipeline.sinks.postgres import PostgresSink
from gapless.pipeline.sinks.postgres.connection import connect, give_up, kept_connection, parsed
from gapless.pipeline.sinks.postgres.markers import Markers
from gapless.pipeline.sinks.postgres.tables import Column, Table
from gapless.pipeline.sinks.postgres.writer import Limits, PostgresWriter
from gapless.pipeline.slots import MarkerMismatch, Mode, Slot
from gapless.pipeline.tasks import RowRefused
from gapless.testing.postgres import Postgres

Query = Callable[[str], list[tuple[Any, ...]]]

FIRST = Slot(Mode.ALIGNED, "orders-0", 0, 0, 3)
SECOND = Slot(Mode.ALIGNED, "orders-0", 1, 3, 5)
PATIENT = Limits(server_s=30, lock_s=30, idle_s=30)


def rows(*ids: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})])


@pytest.fixture
def writer(dsn: str, query: Query) -> Iterator[PostgresWriter]:
    query("CREATE TABLE out (id bigint)")
    markers = Markers(Table.named("gapless_markers"), "orders", "out", "checkpoint-1")
    made = PostgresWriter(parsed(dsn), Table.named("out"), [Column("id", "int8")], markers, limits=PATIENT)
    with connect(dsn) as connection:
        markers.make_table(connection)
    made.establish([FIRST], reset=False)
    yield made
    give_up(kept_connection(made.url, 10))


def ids(query: Query) -> list[int]:
    return [number for (number,) in query("SELECT id FROM out ORDER BY id")]


def position(query: Query) -> int:
    return int(query("SELECT position FROM gapless_markers")[0][0])


def begun(writer: PostgresWriter, slot: Slot, *, copying: bool = False) -> psycopg.Connection[Any]:
    """Another attempt at the slot, which has begun to write and then does nothing any more."""
    connection = connect(writer.url)
    connection.execute(writer._beginning(slot))
    assert writer.markers.take(connection, slot.name) == slot.start
    if copying:
        connection.pgconn.exec_(b"COPY out FROM STDIN (FORMAT BINARY)")
    else:
        connection.execute("INSERT INTO out VALUES (99)")
    return connection


def test_rows_and_marker_come_together_and_once(writer: PostgresWriter, query: Query) -> None:
    assert writer.write(FIRST, rows(0, 1, 2))[:3] == ("orders-0", 3, False)
    assert writer.write(FIRST, rows(0, 1, 2))[:3] == ("orders-0", 0, True)
    assert writer.write(SECOND, rows(3, 4))[:3] == ("orders-0", 2, False)
    assert (ids(query), position(query)) == ([0, 1, 2, 3, 4], 5)


def test_a_slot_without_rows_moves_its_marker(writer: PostgresWriter, query: Query) -> None:
    assert writer.write(FIRST, iter([])).rows == 0
    assert (ids(query), position(query)) == ([], 3)


def test_a_connection_is_kept_and_one_that_broke_meanwhile_is_not_used(
    writer: PostgresWriter, query: Query
) -> None:
    writer.write(FIRST, rows(0))
    connection = kept_connection(writer.url, 10)
    assert kept_connection(writer.url, 10) is connection
    query(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
    writer.write(SECOND, rows(3))
    assert kept_connection(writer.url, 10) is not connection
    assert ids(query) == [0, 3]


def test_an_attempt_that_is_still_writing_is_waited_for(writer: PostgresWriter, query: Query) -> None:
    """It commits, and this one finds nothing to do."""
    other = begun(writer, FIRST)
    done: list[Any] = []
    waiting = threading.Thread(target=lambda: done.append(writer.write(FIRST, rows(99))))
    waiting.start()
    wait_for(lambda: query("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
    writer.markers.move(other, FIRST)
    other.execute("COMMIT")
    waiting.join(30)
    assert done[0].skipped
    assert (ids(query), position(query)) == ([99], 3)
    other.close()


def test_a_zombie_between_two_statements_is_ended_by_the_server(writer: PostgresWriter, query: Query) -> None:
    hung = begun(replace(writer, limits=Limits(idle_s=0.5)), FIRST)
    assert not writer.write(FIRST, rows(0)).skipped
    with pytest.raises(psycopg.Error):
        hung.execute("COMMIT")
    assert (ids(query), position(query)) == ([0], 3)


def test_a_zombie_within_copy_is_ended_by_the_next_attempt(writer: PostgresWriter, query: Query) -> None:
    """No timeout of the server reaches a COPY that waits for its client."""
    hung = begun(replace(writer, limits=Limits(idle_s=0.2)), FIRST, copying=True)
    hasty = replace(writer, limits=Limits(server_s=30, lock_s=1.0))
    assert not hasty.write(FIRST, rows(0)).skipped
    with pytest.raises(psycopg.Error):
        hung.execute("COMMIT")
    assert (ids(query), position(query)) == ([0], 3)
    hung.close()


def test_slow_rows_do_not_count_as_idle(writer: PostgresWriter, query: Query) -> None:
    impatient = replace(writer, limits=Limits(idle_s=0.3))

    def slowly() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            time.sleep(0.6)
            yield from rows(number)

    assert impatient.write(FIRST, slowly()).rows == 3
    assert ids(query) == [0, 1, 2]


def test_rows_that_break_off_leave_nothing(writer: PostgresWriter, query: Query) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows(0)
        raise OSError("the input is gone")

    with pytest.raises(OSError, match="the input is gone"):
        writer.write(FIRST, broken())
    assert (ids(query), position(query)) == ([], 0)
    writer.write(FIRST, rows(0, 1, 2))
    assert ids(query) == [0, 1, 2]


def test_a_marker_of_another_checkpoint_is_left_alone(writer: PostgresWriter, query: Query) -> None:
    query("UPDATE gapless_markers SET checkpoint = 'other'")
    with pytest.raises(MarkerMismatch, match="another checkpoint of pipeline orders has written to sink out"):
        writer.write(FIRST, rows(0))
    assert ids(query) == []


@pytest.mark.parametrize("how", ["DELETE FROM gapless_markers", "DROP TABLE gapless_markers"])
def test_a_marker_that_is_gone_is_not_a_beginning(writer: PostgresWriter, query: Query, how: str) -> None:
    query(how)
    with pytest.raises(MarkerMismatch, match="marker of orders-0 is gone"):
        writer.write(FIRST, rows(0))
    assert ids(query) == []


def test_markers_that_are_gone_can_be_set_again_and_others_stay(
    writer: PostgresWriter, query: Query, dsn: str
) -> None:
    writer.write(FIRST, rows(0, 1, 2))
    sink = PostgresSink(dsn, "out")
    context = SinkContext("orders", "out", SimpleNamespace(id="checkpoint-1"), None)  # type: ignore[arg-type]
    assert sink.restore_markers(context, {"orders-0": 9, "orders-1": 7}, 0) == ["orders-1"]
    assert sink.positions(context) == {"orders-0": 3, "orders-1": 7}
    query("DROP TABLE gapless_markers")
    assert sink.positions(context) == {}
    assert sink.restore_markers(context, {"orders-0": 3}, 0) == ["orders-0"]
    assert writer.write(SECOND, rows(3, 4)).rows == 2
    stranger = SinkContext("orders", "out", SimpleNamespace(id="checkpoint-2"), None)  # type: ignore[arg-type]
    with pytest.raises(SinkRefused, match="another checkpoint"):
        sink.restore_markers(stranger, {"orders-1": 0}, 0)
    assert sink.positions(context) == {"orders-0": 5}


def test_what_the_server_refuses_is_told_in_one_line(writer: PostgresWriter, query: Query) -> None:
    query("ALTER TABLE out ADD CONSTRAINT small CHECK (id < 5)")
    with pytest.raises(RowRefused) as refused:
        writer.write(FIRST, rows(3, 7))
    assert 'violates check constraint "small"' in str(refused.value)
    assert "(7)" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert position(query) == 0


def test_a_commit_survives_although_the_server_would_forget_it(writer: PostgresWriter, query: Query) -> None:
    """A server with synchronous_commit=off may lose commits that it has confirmed; ours it does not."""
    query("ALTER DATABASE postgres SET synchronous_commit = off")
    try:
        give_up(kept_connection(writer.url, 10))  # It was opened with the old setting.
        query("ALTER TABLE out ADD COLUMN setting text DEFAULT current_setting('synchronous_commit')")
        with connect(writer.url) as another:
            assert another.execute("SHOW synchronous_commit").fetchone() == ("off",)
        assert writer.write(FIRST, rows(0)).rows == 1
        assert query("SELECT setting FROM out") == [("on",)]
    finally:
        query("ALTER DATABASE postgres RESET synchronous_commit")


@pytest.mark.postgres
def test_a_server_that_is_away_is_waited_for_and_then_named() -> None:
    with Postgres() as server:
        url = parsed(server.dsn)
        markers = Markers(Table.named("gapless_markers"), "orders", "out", "checkpoint-1")
        writer = PostgresWriter(url, Table.named("out"), [Column("id", "int8")], markers, limits=PATIENT)
        with connect(url) as connection:
            connection.execute("CREATE TABLE out (id bigint)")
            markers.make_table(connection)
        writer.establish([FIRST], reset=False)
        writer.write(FIRST, rows(0, 1, 2))
        server.kill()
        hasty = replace(writer, limits=Limits(server_s=0.2, lock_s=0.2))
        with pytest.raises(Unreachable, match=r"^PostgreSQL at 127.0.0.1:\d+/postgres: .*refused"):
            hasty.write(SECOND, rows(3, 4))
        back = threading.Timer(1.0, server.start)
        back.start()
        assert writer.write(SECOND, rows(3, 4)).rows == 2
        back.join()
        assert writer.write(SECOND, rows(3, 4)).skipped
        give_up(kept_connection(url, 10))


def test_many_that_start_at_once_make_the_markers_table_once(dsn: str, query: Query) -> None:
    markers = Markers(Table.named("gapless_markers"), "orders", "out", "checkpoint-1")
    at_once = threading.Barrier(6)

    def start(_number: int) -> None:
        with connect(dsn) as connection:
            at_once.wait(30)
            markers.make_table(connection)

    with ThreadPoolExecutor(at_once.parties) as pool:
        for _ in range(10):
            query("DROP TABLE IF EXISTS gapless_markers")
            list(pool.map(start, range(at_once.parties)))


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
