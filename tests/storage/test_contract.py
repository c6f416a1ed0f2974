"""What both twins of the log promise, one sentence each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gapless.core.log import LogConfig, LogFailed, ProducerEntry, TimedOffset
from tests.storage.conftest import Medium
from tests.storage.helpers import (
    SMALL,
    append,
    append_one,
    contents,
    fill,
    make_batch,
    offsets_of,
    parse_all,
    read_all,
)

ONE_SEGMENT = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100)

pytestmark = pytest.mark.usefixtures("tiny_blocks")


def test_a_new_log_is_empty_and_begins_at_zero(medium: Medium) -> None:
    log = medium.open()
    assert (log.start_offset, log.end_offset, log.size_bytes, log.latest_epoch) == (0, 0, 0, -1)
    assert [tuple(info) for info in log.segments()] == [(0, 0, 0, -1)]
    assert log.read(0, 1000, 100, at_least_one=True).size == 0
    assert log.load_producers() == (0, [])
    assert list(log.batches_from(0)) == []
    assert log.offset_at_time(0, 100) is None
    assert log.latest_timestamp(100) is None


def test_what_was_appended_is_read_back_byte_for_byte(medium: Medium) -> None:
    log = medium.open()
    written = fill(log, 100)
    assert read_all(log) == b"".join(written)
    assert log.size_bytes == len(b"".join(written))
    assert len(log.segments()) > 1


def test_several_batches_in_one_append_are_each_found(medium: Medium) -> None:
    log = medium.open(ONE_SEGMENT)
    batches = [make_batch(2 * i, (1000 + i, 1000 + i)) for i in range(30)]
    append(log, *batches[:10])
    append(log, *batches[10:])
    assert log.end_offset == 60
    for offset in range(60):
        assert offsets_of(contents(log.read(offset, 1, 60, at_least_one=True))) == [offset // 2 * 2]


@pytest.mark.parametrize("clean", [True, False])
def test_everything_survives_a_restart(medium: Medium, clean: bool) -> None:
    log = medium.open()
    written = fill(log, 80)
    append_one(log, (5000,), epoch=3)
    before = (
        log.start_offset,
        log.end_offset,
        log.size_bytes,
        log.latest_epoch,
        log.segments(),
        read_all(log),
    )
    log = medium.reopen(clean=clean)
    after = (
        log.start_offset,
        log.end_offset,
        log.size_bytes,
        log.latest_epoch,
        log.segments(),
        read_all(log),
    )
    assert after == before
    written.append(append_one(log, (6000,), epoch=4))
    assert log.end_of_epoch(3) == (3, 81)


# ----------------------------------------------------------------------------------------------- append


def test_a_batch_that_does_not_follow_is_refused_and_changes_nothing(medium: Medium) -> None:
    log = medium.open()
    fill(log, 3)
    for wrong in (2, 4):
        batch = make_batch(wrong)
        with pytest.raises(ValueError, match=rf"offset {wrong} cannot follow where 3 is next"):
            log.append(parse_all(batch), memoryview(batch))
    good = make_batch(3)
    with pytest.raises(ValueError, match="1 bytes longer"):
        log.append(parse_all(good), memoryview(good + b"x"))
    assert log.end_offset == 3
    append(log, good)
    assert offsets_of(read_all(log)) == [0, 1, 2, 3]


def test_a_log_that_was_closed_refuses_appends(medium: Medium) -> None:
    log = medium.open()
    fill(log, 1)
    log.close()
    with pytest.raises(LogFailed, match="closed"):
        append_one(log)


def test_a_segment_is_rolled_when_the_next_append_would_overfill_it(medium: Medium) -> None:
    log = medium.open(replace(SMALL, segment_bytes=500))
    size = len(make_batch(0))
    fitting = 500 // size
    for i in range(fitting):
        assert append(log, make_batch(i)) is False
    assert append(log, make_batch(fitting)) is True
    assert [info.base_offset for info in log.segments()] == [0, fitting]
    assert [info.end_offset for info in log.segments()] == [fitting, fitting + 1]


def test_an_append_larger_than_a_segment_gets_one_of_its_own(medium: Medium) -> None:
    log = medium.open(replace(SMALL, segment_bytes=100))
    assert append(log, make_batch(0, value=b"x" * 500)) is False
    assert append(log, make_batch(1, value=b"x" * 500)) is True
    assert len(log.segments()) == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_a_segment_is_rolled_when_it_is_too_old_for_the_next_append(medium: Medium, restarted: bool) -> None:
    config = replace(ONE_SEGMENT, segment_ms=100)
    log = medium.open(config)
    append_one(log, (1000,))
    if restarted:
        log = medium.reopen(config)
    assert append(log, make_batch(1, (1100,))) is False
    assert append(log, make_batch(2, (1101,))) is True


def test_a_changed_configuration_counts_from_the_next_append(medium: Medium) -> None:
    log = medium.open(ONE_SEGMENT)
    append_one(log)
    assert log.roll_if_needed(10, 1000) is False
    log.configure(replace(ONE_SEGMENT, segment_bytes=1))
    assert log.roll_if_needed(10, 1000) is True


# ------------------------------------------------------------------------------------------------- read


def test_a_read_ends_at_or_below_the_given_offset(medium: Medium) -> None:
    log = medium.open(ONE_SEGMENT)
    for i in range(40):
        append_one(log, (1000, 1000, 1000))
        assert log.end_offset == 3 * i + 3
    for before in range(0, 121, 7):
        expected = list(range(0, before - 2, 3))
        assert offsets_of(contents(log.read(0, 1 << 20, before, at_least_one=True))) == expected


def test_a_read_takes_no_more_than_the_given_bytes(medium: Medium) -> None:
    log = medium.open(ONE_SEGMENT)
    batches = fill(log, 40)
    size = len(batches[0])
    for offset in (0, 3, 20, 38):
        for count in (1, 2, 5, 17, 100):
            fitting = min(count, 40 - offset)
            for extra in (0, size - 1):
                got = contents(log.read(offset, count * size + extra, 40, at_least_one=False))
                assert got == b"".join(batches[offset : offset + fitting])


def test_only_at_least_one_lets_the_first_batch_exceed_the_bytes(medium: Medium) -> None:
    log = medium.open(ONE_SEGMENT)
    batches = fill(log, 20)
    for offset in (0, 7, 19):
        assert log.read(offset, 10, 20, at_least_one=False).size == 0
        assert contents(log.read(offset, 10, 20, at_least_one=True)) == batches[offset]
        assert contents(log.read(offset, 0, 20, at_least_one=True)) == batches[offset]


def test_a_read_begins_with_the_batch_that_holds_the_offset(medium: Medium) -> None:
    log = medium.open(ONE_SEGMENT)
    for _ in range(30):
        append_one(log, (1000, 1001, 1002, 1003))
    for offset in range(120):
        assert offsets_of(contents(log.read(offset, 1, 120, at_least_one=True))) == [offset // 4 * 4]


def test_a_read_at_the_end_is_empty_and_one_before_the_start_is_a_mistake(medium: Medium) -> None:
    log = medium.open()
    fill(log, 10)
    assert log.read(10, 1000, 10, at_least_one=True).size == 0
    assert log.read(11, 1000, 100, at_least_one=True).size == 0
    log.advance_start(5)
    with pytest.raises(ValueError, match="before the log's start 5"):
        log.read(4, 1000, 10, at_least_one=True)


def test_a_read_stays_within_one_segment(medium: Medium) -> None:
    log = medium.open()
    fill(log, 100)
    ends = {info.end_offset for info in log.segments()}
    for offset in range(100):
        last = parse_all(contents(log.read(offset, 1 << 20, 100, at_least_one=True)))[-1]
        assert last.next_offset in ends


def test_the_headers_from_an_offset_are_those_of_all_later_batches(medium: Medium) -> None:
    log = medium.open()
    for i in range(60):
        append_one(log, (1000 + i, 1000 + i))
    for offset in (0, 1, 2, 59, 60, 119, 120, 500):
        bases = [header.base_offset for header in log.batches_from(offset)]
        assert bases == list(range(offset // 2 * 2, 120, 2))
    log.advance_start(51)
    assert [header.base_offset for header in log.batches_from(51)] == list(range(50, 120, 2))
    first = log.segments()[0].base_offset
    assert [header.base_offset for header in log.batches_from(0)] == list(range(first, 120, 2))


# ---------------------------------------------------------------------------------------------- cutting


@pytest.mark.parametrize("reopened", [False, True])
def test_truncation_forgets_the_batch_that_holds_the_offset_and_all_later(
    medium: Medium, reopened: bool
) -> None:
    log = medium.open()
    batches = [append_one(log, (1000 + i, 1000 + i)) for i in range(60)]
    for offset, end in ((119, 118), (80, 80), (41, 40), (3, 2)):
        log.truncate_to(offset)
        assert log.end_offset == end
        assert read_all(log) == b"".join(batches[: end // 2])
        assert log.size_bytes == len(b"".join(batches[: end // 2]))
        if reopened:
            log = medium.reopen(clean=False)
            assert log.end_offset == end
    batches[1:] = [append_one(log, (3000,), epoch=1)]
    assert read_all(log) == b"".join(batches)


def test_truncation_at_or_above_the_end_changes_nothing(medium: Medium) -> None:
    log = medium.open()
    batches = fill(log, 10)
    log.truncate_to(10)
    log.truncate_to(99)
    assert read_all(log) == b"".join(batches)


def test_truncation_at_or_below_the_start_empties_the_log(medium: Medium) -> None:
    log = medium.open()
    fill(log, 100)
    log.advance_start(60)
    log.truncate_to(40)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (40, 40, 0)
    assert [info.base_offset for info in log.segments()] == [40]
    log = medium.reopen(clean=False)
    assert (log.start_offset, log.end_offset) == (40, 40)
    batch = append_one(log)
    assert read_all(log) == batch


def test_truncation_into_the_batch_that_holds_the_start_empties_the_log_there(medium: Medium) -> None:
    log = medium.open()
    append_one(log, (1000,) * 10)
    log.advance_start(5)
    log.truncate_to(7)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (5, 5, 0)


def test_truncation_forgets_times_epochs_and_snapshots_of_what_goes(medium: Medium) -> None:
    log = medium.open(ONE_SEGMENT)
    for i in range(30):
        append_one(log, (1000 + i,), epoch=i // 10)
        if i in (9, 19):
            log.save_producers([ProducerEntry(i, 0, 1, i, 0, 1000 + i)])
    log.truncate_to(15)
    assert log.latest_epoch == 1
    assert log.end_of_epoch(1) == (1, 15)
    assert log.latest_timestamp(100) == TimedOffset(1014, 14, 1)
    assert log.offset_at_time(1015, 100) is None
    assert log.segments()[0].max_timestamp_ms == 1014
    assert log.load_producers()[0] <= 15


def test_advancing_the_start_drops_segments_that_lie_below_it(medium: Medium) -> None:
    log = medium.open()
    batches = fill(log, 200)
    infos = log.segments()
    middle = infos[2].base_offset + 1
    assert log.advance_start(middle) is False
    assert log.start_offset == middle
    assert log.segments() == infos[2:]
    assert log.size_bytes == sum(info.size_bytes for info in infos[2:])
    assert read_all(log) == b"".join(batches[middle:])
    assert log.advance_start(middle - 1) is False
    assert log.start_offset == middle


@pytest.mark.parametrize("clean", [True, False])
def test_the_start_survives_a_restart_once_checkpoints_are_written(medium: Medium, clean: bool) -> None:
    log = medium.open()
    fill(log, 100)
    log.advance_start(51)
    if not clean and hasattr(medium.store, "write_checkpoints"):
        medium.store.write_checkpoints()
    log = medium.reopen(clean=clean)
    assert log.start_offset == 51
    assert log.end_offset == 100


def test_advancing_the_start_to_the_end_leaves_an_empty_log_that_goes_on(medium: Medium) -> None:
    log = medium.open()
    fill(log, 50)
    append_one(log, epoch=2)
    assert log.advance_start(51) is True
    assert (log.start_offset, log.end_offset, log.size_bytes, log.latest_epoch) == (51, 51, 0, 2)
    log = medium.reopen()
    assert (log.start_offset, log.end_offset, log.latest_epoch) == (51, 51, 2)
    batch = append_one(log, epoch=2)
    assert read_all(log) == batch


def test_advancing_the_start_beyond_the_end_begins_anew_there(medium: Medium) -> None:
    log = medium.open()
    fill(log, 50)
    assert log.advance_start(1000) is True
    assert (log.start_offset, log.end_offset, log.size_bytes, log.latest_epoch) == (1000, 1000, 0, -1)
    log = medium.reopen(clean=False)
    assert (log.start_offset, log.end_offset) == (1000, 1000)
    append_one(log)
    assert offsets_of(read_all(log)) == [1000]


# ----------------------------------------------------------------------------------------------- epochs


def test_epochs_end_where_the_next_one_begins(medium: Medium) -> None:
    log = medium.open()
    for epoch in (0, 0, 2, 5, 5):
        append_one(log, (1, 2), epoch=epoch)
    expected = {-1: (-1, -1), 0: (0, 4), 1: (0, 4), 2: (2, 6), 3: (2, 6), 4: (2, 6), 5: (5, 10), 9: (5, 10)}
    assert {epoch: log.end_of_epoch(epoch) for epoch in expected} == expected
    log = medium.reopen(clean=False)
    assert {epoch: log.end_of_epoch(epoch) for epoch in expected} == expected
    log.advance_start(5)
    assert log.end_of_epoch(1) == (1, 5)  # all that it wrote is gone: it ended where the log begins
    assert log.end_of_epoch(2) == (2, 6)


# ------------------------------------------------------------------------------------------------ times


def test_the_first_record_at_or_after_a_time_is_found_in_offset_order(medium: Medium) -> None:
    log = medium.open()
    times = [(1000 + 10 * i, 1000 + 10 * i + 5) for i in range(60)]
    for pair in times:
        append_one(log, pair)
    flat = [time for pair in times for time in pair]
    for target in range(990, 1620):
        expected = next((i for i, time in enumerate(flat) if time >= target), None)
        found = log.offset_at_time(target, log.end_offset)
        assert (found and found.offset) == expected
        assert found is None or found.timestamp_ms == flat[found.offset]


def test_times_out_of_order_are_answered_by_offset_not_by_time(medium: Medium) -> None:
    log = medium.open()
    for time in (500, 100, 900, 200, 300, 800, 950, 10):
        append_one(log, (time,), value=b"x" * 300)
    for target, offset in ((0, 0), (500, 0), (501, 2), (900, 2), (901, 6), (951, None)):
        found = log.offset_at_time(target, 8)
        assert (found and found.offset) == offset
    assert log.latest_timestamp(8) == TimedOffset(950, 6, 0)
    assert log.latest_timestamp(6) == TimedOffset(900, 2, 0)
    assert log.latest_timestamp(2) == TimedOffset(500, 0, 0)
    log.advance_start(3)
    found = log.offset_at_time(500, 8)
    assert found is not None
    assert found.offset == 5


def test_records_at_or_above_the_given_offset_are_not_found_by_time(medium: Medium) -> None:
    log = medium.open()
    fill(log, 50)
    assert log.offset_at_time(1030, 30) is None
    found = log.offset_at_time(1029, 30)
    assert found is not None
    assert found.offset == 29


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_times_are_found_within_compressed_batches(medium: Medium, compression: int) -> None:
    log = medium.open()
    append(log, make_batch(0, (100, 300, 200), compression=compression, epoch=4))
    assert log.offset_at_time(150, 3) == TimedOffset(300, 1, 4)
    assert log.offset_at_time(100, 3) == TimedOffset(100, 0, 4)
    assert log.latest_timestamp(3) == TimedOffset(300, 1, 4)


def test_the_first_of_several_records_with_the_largest_time_is_the_latest(medium: Medium) -> None:
    log = medium.open()
    for time in (1, 7, 7, 7, 3):
        append_one(log, (time, time), value=b"x" * 1000)
    assert log.latest_timestamp(10) == TimedOffset(7, 2, 0)
    assert log.latest_timestamp(2) == TimedOffset(1, 0, 0)


def test_records_without_a_time_are_not_the_latest(medium: Medium) -> None:
    log = medium.open()
    append_one(log, (-1, -1))
    assert log.latest_timestamp(2) is None
    assert log.segments()[0].max_timestamp_ms == -1


# -------------------------------------------------------------------------------------------- producers


def entry(producer_id: int, offset: int) -> ProducerEntry:
    return ProducerEntry(producer_id, 3, 77, offset, 4, 123456, 9, 2)


@pytest.mark.parametrize("clean", [True, False])
def test_the_producers_state_survives_a_restart(medium: Medium, clean: bool) -> None:
    log = medium.open()
    fill(log, 5)
    log.save_producers([entry(1, 4), entry(2, 3)])
    log = medium.reopen(clean=clean)
    assert log.load_producers() == (5, [entry(1, 4), entry(2, 3)])


def test_the_newest_snapshot_is_the_one_that_counts(medium: Medium) -> None:
    log = medium.open()
    fill(log, 5)
    log.save_producers([entry(1, 4)])
    fill(log, 2)
    log.save_producers([entry(1, 6)])
    assert log.load_producers() == (7, [entry(1, 6)])


def test_truncation_falls_back_to_the_snapshot_of_a_segment_that_remains(medium: Medium) -> None:
    log = medium.open(replace(SMALL, segment_bytes=600))
    for i in range(20):
        batch = make_batch(i, value=b"x" * 100)
        if log.roll_if_needed(len(batch), 1000):
            log.save_producers([entry(1, i - 1)])
        log.append(parse_all(batch), memoryview(batch))
    log.save_producers([entry(1, 19)])
    base = [info.base_offset for info in log.segments()][3]
    log.truncate_to(base + 1)
    assert log.load_producers() == (base, [entry(1, base - 1)])


def test_the_newest_snapshot_outlives_the_segments_below_it(medium: Medium) -> None:
    log = medium.open()
    fill(log, 50)
    log.save_producers([entry(1, 49)])
    fill(log, 3)
    log.advance_start(53)
    log = medium.reopen(clean=False)
    assert log.load_producers() == (50, [entry(1, 49)])


# ------------------------------------------------------------------------------------------------- store


def test_a_deleted_log_begins_again_empty(medium: Medium) -> None:
    log = medium.open()
    fill(log, 30)
    medium.store.delete("orders", 0)
    log = medium.open()
    assert (log.start_offset, log.end_offset) == (0, 0)
    log = medium.reopen()
    assert log.end_offset == 0


def test_slices_stay_valid_after_deletion(medium: Medium) -> None:
    log = medium.open()
    batches = fill(log, 100)
    old = log.read(0, 1 << 20, 100, at_least_one=True)
    newest = log.read(99, 1 << 20, 100, at_least_one=True)
    log.advance_start(90)
    medium.store.delete("orders", 0)
    assert contents(old) == b"".join(batches)[: old.size]
    assert contents(newest) == batches[99]


def test_partitions_are_apart(medium: Medium) -> None:
    first, second = medium.open(partition=0), medium.open(partition=1)
    append_one(first, value=b"first")
    append_one(second, value=b"second")
    assert b"second" not in read_all(first)
    assert b"second" in read_all(second)


def test_a_header_that_promises_more_than_its_records_hold_is_taken_by_its_word(medium: Medium) -> None:
    log = medium.open()
    for i in range(20):
        batch = make_batch(i, (1000 + i,))
        batch[35:43] = (9000 + i).to_bytes(8, "big")  # the largest timestamp
        append(log, batch)
    assert log.offset_at_time(5000, 20) == TimedOffset(9000, 0, 0)
    assert log.offset_at_time(9010, 20) == TimedOffset(9010, 10, 0)


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_deleted_is_still_there_for_the_producers_state(medium: Medium, clean: bool) -> None:
    """A producer whose records are deleted may still send one of them again."""
    log = medium.open(ONE_SEGMENT)
    written = fill(log, 5)
    log.advance_start(3)
    with pytest.raises(ValueError, match="before the log's start"):
        log.read(1, 1000, 5, at_least_one=True)
    log = medium.reopen(ONE_SEGMENT, clean=clean)
    assert log.load_producers() == (0, [])
    assert [batch.base_offset for batch in log.batches_from(0)] == [0, 1, 2, 3, 4]
    assert bytes(log.bytes_from(1, 1)) == written[1]
