"""What both twins of the log promise of compaction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gapless.core.log import AbortedTransaction, CleaningPlan, Log, LogConfig, ProducerEntry
from gapless.storage import FileLog
from gapless.wire.batch import BatchHeader, parse_header
from gapless.wire.records import Record, build_batch, delete_horizon_ms, iterate_records
from gapless.wire.transaction_records import EndMarker, build_marker
from tests.storage.conftest import Medium
from tests.storage.helpers import append, flush, parse_all

TIGHT = LogConfig(segment_bytes=1024, index_interval_bytes=100)
ROOMY = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100)
LATE_MS = 10_000_000

pytestmark = pytest.mark.usefixtures("tiny_blocks")

KeyValue = tuple[str, str | None]


def put(log: Log, *pairs: KeyValue, timestamp_ms: int | None = None, **options: int) -> None:
    """Append one batch; by default its time is its offset."""
    base = log.end_offset
    records = [
        (
            base + i if timestamp_ms is None else timestamp_ms,
            key.encode(),
            None if value is None else value.encode(),
        )
        for i, (key, value) in enumerate(pairs)
    ]
    append(log, build_batch(records, base_offset=base, leader_epoch=0, **options))  # type: ignore[arg-type]


def roll(log: Log, config: LogConfig = TIGHT) -> None:
    """Begin a new segment, as a larger append would."""
    assert log.roll_if_needed(config.segment_bytes, 0)
    log.save_producers([])


def plan(log: Log, **changes: object) -> CleaningPlan:
    values: dict[str, object] = {
        "end_offset": log.end_offset,
        "producers": (),
        "now_ms": 1000,
        "delete_retention_ms": 500,
        "max_keys": 1000,
        **changes,
    }
    return CleaningPlan(**values)  # type: ignore[arg-type]


def clean(log: Log, **changes: object) -> None:
    if isinstance(log, FileLog):
        flush(log)
    cleaning = log.begin_cleaning(plan(log, **changes))
    assert cleaning is not None
    while not cleaning.step():
        pass


def batches_of(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    """Everything readable, from the start, batch by batch."""
    found = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.bytes_from(offset, 4096)
        assert data, f"nothing to read at {offset}, before the end {log.end_offset}"
        for header in parse_all(data):
            found.append((header, list(iterate_records(data, header))))
            offset = header.next_offset
    return found


def survivors(log: Log) -> list[tuple[int, str, str | None]]:
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for _, records in batches_of(log)
        for record in records
    ]


def latest_of(pairs: Sequence[tuple[int, str, str | None]]) -> list[tuple[int, str, str | None]]:
    last = {key: offset for offset, key, _ in pairs}
    return [each for each in pairs if last[each[1]] == each[0]]


def fill_keys(log: Log, count: int, keys: int = 7, **options: int) -> None:
    for i in range(count):
        put(log, (f"k{i % keys}", f"v{i}"), **options)


def test_only_the_last_record_of_each_key_survives(medium: Medium) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 100)
    roll(log)
    put(log, ("k0", "newest, but in the active segment"))
    clean(log)
    assert survivors(log) == [
        *[(i, f"k{i % 7}", f"v{i}") for i in range(93, 100)],
        (100, "k0", "newest, but in the active segment"),
    ]
    assert (log.start_offset, log.end_offset, log.cleaned_offset) == (0, 101, 100)


def test_the_active_segment_and_all_above_the_plan_stay(medium: Medium) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 100)
    before = survivors(log)
    segments = log.segments()
    end = segments[2].end_offset
    clean(log, end_offset=end + 1)
    assert log.cleaned_offset == end
    assert survivors(log) == latest_of(before[:end]) + before[end:]


def test_segments_still_meet_and_small_ones_are_merged(medium: Medium) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 100)
    roll(log)
    count = len(log.segments())
    clean(log)
    put(log, ("new", "x"))
    roll(log)
    clean(log)  # how small the segments have become decides which of them the next pass merges
    segments = log.segments()
    assert 1 < len(segments) < count
    assert [segment.end_offset for segment in segments[:-1]] == [each.base_offset for each in segments[1:]]
    assert log.size_bytes == sum(segment.size_bytes for segment in segments)
    put(log, ("more", "x"))
    assert log.end_offset == 102
    assert len(survivors(log)) == 9


@pytest.mark.parametrize("compression", range(5))
def test_batches_keep_their_offsets_while_records_go(medium: Medium, compression: int) -> None:
    log = medium.open(ROOMY)
    put(
        log,
        ("a", "1"),
        ("b", "1"),
        ("c", "1"),
        compression=compression,
        producer_id=5,
        producer_epoch=2,
        base_sequence=0,
    )
    put(log, ("a", "2"), ("c", "2"), compression=compression)
    roll(log, ROOMY)
    clean(log)
    (first, kept), (second, _) = batches_of(log)
    assert (first.base_offset, first.last_offset, first.record_count, first.last_sequence) == (0, 2, 1, 2)
    assert (first.producer_id, first.producer_epoch, first.compression) == (5, 2, compression)
    assert [(record.offset, record.key, record.timestamp_ms) for record in kept] == [(1, b"b", 1)]
    assert first.max_timestamp == 1
    assert (second.base_offset, second.record_count) == (3, 2)


def test_what_is_not_touched_stays_byte_for_byte(medium: Medium) -> None:
    log = medium.open(ROOMY)
    for i in range(10):
        put(log, (f"unique{i}", "x" * i))
    roll(log, ROOMY)
    before = bytes(log.bytes_from(0, 1 << 20))
    clean(log)
    assert bytes(log.bytes_from(0, 1 << 20)) == before


def test_every_offset_in_a_gap_leads_to_the_next_batch(medium: Medium) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 200, keys=61)
    roll(log)
    clean(log)
    left = [header.last_offset for header, _ in batches_of(log)]
    assert len(left) < 80
    for reopened in (False, True):
        if reopened:
            log = medium.reopen(TIGHT)
        for offset in range(200):
            expected = next(each for each in left if each >= offset)
            found = parse_all(log.bytes_from(offset, 1))[0]
            assert found.last_offset == expected, offset
            assert next(log.batches_from(offset)).last_offset == expected
            part = log.read(offset, 1 << 20, expected, at_least_one=True)
            assert part.size == 0, "nothing ends below the first batch after the gap"


def test_look_ups_by_time_find_what_is_left(medium: Medium) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 200, keys=61)
    roll(log)
    clean(log)
    left = [offset for offset, _, _ in survivors(log)]
    for time in range(200):
        found = log.offset_at_time(time, 200)
        assert found is not None
        assert found.offset == next(each for each in left if each >= time)
    newest = log.latest_timestamp(200)
    assert newest is not None
    assert newest.offset == 199


def test_an_emptied_batch_is_not_found_by_its_time(medium: Medium) -> None:
    log = medium.open(ROOMY)
    put(log, ("a", "old"), timestamp_ms=100)
    put(log, ("b", "newest"), timestamp_ms=900, producer_id=5, producer_epoch=0, base_sequence=0)
    put(log, ("b", "last"), timestamp_ms=500)
    roll(log, ROOMY)
    clean(log, producers=[ProducerEntry(5, 0, 0, 1, 0, 900)])
    assert [header.record_count for header, _ in batches_of(log)] == [1, 0, 1]
    found = log.latest_timestamp(3)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (2, 500)
    found = log.offset_at_time(400, 3)
    assert found is not None
    assert found.offset == 2
    assert log.offset_at_time(600, 3) is None


def test_a_tombstone_stays_until_its_horizon_has_passed(medium: Medium) -> None:
    log = medium.open(ROOMY)
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None))
    put(log, ("c", "1"))
    roll(log, ROOMY)
    clean(log, now_ms=1000, delete_retention_ms=500)
    assert survivors(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    tombstone = batches_of(log)[1]
    assert delete_horizon_ms(tombstone[0]) == 1500
    assert tombstone[1][0].timestamp_ms == 2
    put(log, ("d", "1"))
    roll(log, ROOMY)
    clean(log, now_ms=1499)
    assert (2, "a", None) in survivors(log)
    put(log, ("e", "1"))
    roll(log, ROOMY)
    clean(log, now_ms=1500)
    assert [key for _, key, _ in survivors(log)] == ["b", "c", "d", "e"]


def test_the_last_batch_of_a_producer_stays_as_an_empty_one(medium: Medium) -> None:
    log = medium.open(ROOMY)
    for sequence in range(3):
        put(log, ("a", f"{sequence}"), producer_id=5, producer_epoch=1, base_sequence=sequence)
    put(log, ("a", "last"))
    roll(log, ROOMY)
    producers = [ProducerEntry(5, 1, 2, 2, 0, 2)]
    for _ in range(2):
        clean(log, producers=producers)
        headers = [header for header, _ in batches_of(log)]
        assert [(each.base_offset, each.record_count) for each in headers[:2]] == [(2, 0), (3, 1)]
        assert (headers[0].producer_id, headers[0].producer_epoch, headers[0].last_sequence) == (5, 1, 2)
        put(log, ("b", "1"))
        roll(log, ROOMY)
    clean(log, producers=())
    assert batches_of(log)[0][0].base_offset == 3, "the producer is forgotten, and its batch with it"


def test_with_more_keys_than_memory_it_takes_several_passes(medium: Medium) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 200, keys=20)
    roll(log)
    before = survivors(log)
    passes = 0
    while log.cleaned_offset < 200:
        reached = log.cleaned_offset
        clean(log, max_keys=8)
        assert log.cleaned_offset > reached
        passes += 1
    assert passes > 5
    assert survivors(log) == latest_of(before)


def test_a_pass_over_nothing_new_does_not_begin(medium: Medium) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 50)
    roll(log)
    clean(log)
    assert log.begin_cleaning(plan(log)) is None


def test_cutting_the_log_ends_a_pass_without_harm(medium: Medium) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 100)
    roll(log)
    if isinstance(log, FileLog):
        flush(log)
    cleaning = log.begin_cleaning(plan(log))
    assert cleaning is not None
    log.truncate_to(30)
    while not cleaning.step():
        pass
    assert [offset for offset, _, _ in survivors(log)] == list(range(30))
    assert log.cleaned_offset == 0
    put(log, ("k", "goes on"))


def test_a_compacted_log_can_be_cut_in_a_gap(medium: Medium) -> None:
    log = medium.open(ROOMY)
    fill_keys(log, 50)
    put(log, ("z", "1"))
    roll(log, ROOMY)
    clean(log)
    log.truncate_to(46)
    assert [offset for offset, _, _ in survivors(log)] == [43, 44, 45]
    assert log.end_offset == 46
    put(log, ("k", "goes on"))
    assert [offset for offset, _, _ in survivors(log)] == [43, 44, 45, 46]


def test_dropping_old_segments_ends_a_pass_without_harm(medium: Medium) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 100)
    roll(log)
    if isinstance(log, FileLog):
        flush(log)
    cleaning = log.begin_cleaning(plan(log))
    assert cleaning is not None
    start = log.segments()[1].base_offset
    log.advance_start(start)
    while not cleaning.step():
        pass
    assert [offset for offset, _, _ in survivors(log)] == list(range(start, 100))


@pytest.mark.parametrize("stop", [True, False])
def test_a_compacted_log_survives_a_restart(medium: Medium, stop: bool) -> None:
    log = medium.open(TIGHT)
    fill_keys(log, 100)
    roll(log)
    clean(log)
    before = (survivors(log), log.segments(), log.size_bytes, log.end_offset, log.latest_epoch)
    log = medium.reopen(TIGHT, clean=stop)
    assert (survivors(log), log.segments(), log.size_bytes, log.end_offset, log.latest_epoch) == before
    if stop:
        assert log.cleaned_offset == 100
    put(log, ("k", "goes on"))


def test_epochs_are_known_as_before(medium: Medium) -> None:
    log = medium.open(ROOMY)
    for epoch in range(4):
        base = log.end_offset
        append(log, build_batch([(1, b"k", b"v")] * 3, base_offset=base, leader_epoch=epoch))
    roll(log, ROOMY)
    before = [log.end_of_epoch(epoch) for epoch in range(5)]
    clean(log)
    assert [log.end_of_epoch(epoch) for epoch in range(5)] == before


# --------------------------------------------------------------------------------------------- transactions


def transact(log: Log, producer_id: int, *pairs: KeyValue, sequence: int = 0) -> int:
    """Append a batch of a transaction; where it begins."""
    first = log.end_offset
    put(log, *pairs, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)
    return first


def end(log: Log, producer_id: int, *, committed: bool, first_offset: int = -1) -> None:
    """Append a marker, and note what it aborts."""
    offset = log.end_offset
    payload = build_marker((producer_id, 0), EndMarker(committed, 0), offset)
    payload[:8] = offset.to_bytes(8, "big")
    payload[12:16] = bytes(4)
    append(log, payload)
    if not committed:
        log.note_aborted(AbortedTransaction(producer_id, first_offset, offset, log.end_offset))


def test_aborted_records_go_and_shadow_nothing(medium: Medium) -> None:
    log = medium.open(ROOMY)
    put(log, ("a", "committed before"))
    first = transact(log, 5, ("a", "aborted"), ("b", "aborted"))
    end(log, 5, committed=False, first_offset=first)
    put(log, ("z", "1"))
    roll(log, ROOMY)
    clean(log)
    data = [
        (record.offset, record.key)
        for header, records in batches_of(log)
        for record in records
        if not header.is_control
    ]
    assert data == [(0, b"a"), (4, b"z")]
    assert log.aborted_in(0, log.read(0, 1 << 20, 5, at_least_one=True), 5) != [], "its marker is still there"


def test_markers_outlive_their_transactions_records_for_a_while(medium: Medium) -> None:
    log = medium.open(ROOMY)
    first = transact(log, 5, ("a", "aborted"))
    end(log, 5, committed=False, first_offset=first)
    transact(log, 6, ("a", "committed"))
    end(log, 6, committed=True)
    put(log, ("a", "last"))
    roll(log, ROOMY)
    markers = []
    for now_ms in (1000, 1000, 1400, 1500):
        clean(log, now_ms=now_ms, delete_retention_ms=500)
        markers.append([header.base_offset for header, _ in batches_of(log) if header.is_control])
        put(log, ("b", "1"))
        roll(log, ROOMY)
    assert markers == [[1, 3], [1, 3], [1, 3], []]
    assert log.aborted_in(0, log.read(0, 1 << 20, 100, at_least_one=True), 100) == []


def test_a_committed_transaction_keeps_its_marker_while_a_record_is_left(medium: Medium) -> None:
    log = medium.open(ROOMY)
    transact(log, 6, ("a", "committed"))
    end(log, 6, committed=True)
    put(log, ("b", "last"))
    roll(log, ROOMY)
    for now_ms in (1000, 9000, 20_000):
        clean(log, now_ms=now_ms)
        header = batches_of(log)[1][0]
        assert header.is_control
        assert delete_horizon_ms(header) is None
        put(log, ("c", "1"))
        roll(log, ROOMY)


def test_the_last_marker_of_a_producer_without_records_stays(medium: Medium) -> None:
    log = medium.open(ROOMY)
    end(log, 6, committed=True)
    put(log, ("b", "last"))
    roll(log, ROOMY)
    for now_ms in (1000, 9000, 20_000):
        clean(log, now_ms=now_ms, producers=[ProducerEntry(6, 0, -1, -1, 0, 0)])
        header = batches_of(log)[0][0]
        assert (header.is_control, header.producer_id) == (True, 6)
        put(log, ("c", "1"))
        roll(log, ROOMY)


def test_an_unreadable_batch_is_kept_as_it_is(medium: Medium) -> None:
    log = medium.open(ROOMY)
    broken = build_batch([(1, b"a", b"value")], base_offset=0, leader_epoch=0)
    broken[57:61] = (9).to_bytes(4, "big")
    append(log, broken)
    put(log, ("a", "2"))
    roll(log, ROOMY)
    clean(log)
    kept = parse_header(log.bytes_from(0, 1 << 20), 0)
    assert (kept.base_offset, kept.record_count) == (0, 9)
