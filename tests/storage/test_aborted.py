"""Aborted transactions are remembered with the log that holds them, for readers of what was committed."""

from __future__ import annotations

import pytest

from gapless.core.log import AbortedTransaction, Log, ProducerEntry
from gapless.storage import FileLogStore
from gapless.storage.disk import Disk
from tests.storage.conftest import Medium
from tests.storage.helpers import append_one, log_file, open_log

PRODUCER = ProducerEntry(1, 0, 0, 0, 0, 1000)


def abort(
    log: Log, first_offset: int, producer_id: int = 1, last_stable_offset: int | None = None
) -> AbortedTransaction:
    """Append a marker's stand-in that ends a transaction."""
    append_one(log)
    last = log.end_offset - 1
    aborted = AbortedTransaction(
        producer_id, first_offset, last, last + 1 if last_stable_offset is None else last_stable_offset
    )
    log.note_aborted(aborted)
    return aborted


def aborted_from(log: Log, offset: int, max_bytes: int = 1) -> list[AbortedTransaction]:
    """What a reader of one batch is told."""
    records = log.read(offset, max_bytes, log.end_offset, at_least_one=True)
    return log.aborted_in(offset, records, log.end_offset)


def test_a_reader_is_told_of_the_transactions_it_reads_of_and_no_others(medium: Medium) -> None:
    log = medium.open()
    appended = []
    for producer_id in range(30):
        append_one(log, value=b"x" * 300)
        appended.append(abort(log, log.end_offset - 1, producer_id))
    assert set(appended[20:22]) <= set(aborted_from(log, 40, 1000))
    assert all(aborted.last_offset >= 40 for aborted in aborted_from(log, 40, 1000))


def test_a_long_transaction_is_found_by_readers_of_its_beginning(medium: Medium) -> None:
    log = medium.open()
    append_one(log)
    while len(log.segments()) < 4:
        append_one(log, value=b"x" * 500)
    long = abort(log, 0)
    for offset in (0, 1, log.end_offset - 2):
        assert aborted_from(log, offset) == [long]


def test_a_later_transaction_ends_the_search_only_if_all_before_it_is_decided(medium: Medium) -> None:
    log = medium.open()
    append_one(log)  # begins a transaction of producer 1
    append_one(log)  # begins one of producer 2
    early = abort(log, 1, producer_id=2, last_stable_offset=0)
    while len(log.segments()) < 3:
        append_one(log, value=b"x" * 500)
    late = abort(log, 0, producer_id=1)
    assert aborted_from(log, 0)[-1] == late
    assert set(aborted_from(log, 1)) == {early, late}


@pytest.mark.parametrize("clean", [True, False])
def test_they_survive_a_restart_up_to_the_snapshot_that_is_started_from(medium: Medium, clean: bool) -> None:
    log = medium.open()
    append_one(log)
    before = abort(log, 0)
    log.save_producers([PRODUCER])
    append_one(log)
    abort(log, 2)
    log = medium.reopen(clean=clean)
    assert log.load_producers() == (2, [PRODUCER])
    assert aborted_from(log, 0, 1 << 20) == [before]
    again = AbortedTransaction(1, 2, 3, 4)
    log.note_aborted(again)
    assert aborted_from(log, 2, 1 << 20) == [again]


def test_without_a_snapshot_all_are_noted_again(medium: Medium) -> None:
    log = medium.open()
    append_one(log)
    abort(log, 0)
    log = medium.reopen(clean=False)
    assert log.load_producers() == (0, [])
    assert aborted_from(log, 0, 1 << 20) == []


def test_truncation_forgets_those_whose_marker_goes(medium: Medium) -> None:
    log = medium.open()
    append_one(log)
    kept = abort(log, 0)
    append_one(log)
    abort(log, 2)
    log.truncate_to(3)
    assert aborted_from(log, 0, 1 << 20) == [kept]
    log.truncate_to(0)
    append_one(log)
    assert aborted_from(log, 0) == []


def test_they_go_with_their_segment(medium: Medium) -> None:
    log = medium.open()
    append_one(log)
    abort(log, 0)
    while len(log.segments()) < 2:
        append_one(log, value=b"x" * 500)
    log.advance_start(log.end_offset - 1)
    assert aborted_from(log, log.end_offset - 1) == []


def test_garbage_after_the_last_snapshot_is_cut(store: FileLogStore) -> None:
    log = open_log(store)
    append_one(log)
    kept = abort(log, 0)
    log.save_producers([])
    store.close()
    path = log_file(store, suffix=".txnindex")
    path.write_bytes(path.read_bytes() + bytes(50))
    with_garbage = FileLogStore(store.location)
    log = open_log(with_garbage)
    assert log.load_producers() == (2, [])
    assert path.stat().st_size == 34
    assert aborted_from(log, 0) == [kept]
    with_garbage.close()


def test_before_a_snapshot_is_written_the_aborted_transactions_below_it_are_durable(
    store: FileLogStore,
) -> None:
    synced: list[int] = []
    store.disk = Disk(fdatasync=synced.append)
    log = open_log(store)
    append_one(log)
    abort(log, 0)
    log.save_producers([])
    log.save_producers([])
    assert len(synced) == 1
