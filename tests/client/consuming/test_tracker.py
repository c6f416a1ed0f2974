"""An offset is committed only when all before it are done, whatever is finished first."""

from __future__ import annotations

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from gapless.client.consuming.backlog import Backlog
from gapless.client.consuming.tracker import OffsetTracker
from gapless.client.records import TopicPartition
from gapless.errors import InvariantViolated

GAPS = st.lists(st.integers(1, 5), min_size=1, max_size=60)


def test_nothing_is_known_before_the_first_record() -> None:
    tracker, positions = OffsetTracker(), []
    positions.append(tracker.position)
    tracker.delivered([7])
    positions.append(tracker.position)
    tracker.done([7])
    positions.append(tracker.position)
    assert positions == [None, 7, 8]


@given(gaps=GAPS, data=st.data())
def test_the_position_is_the_first_offset_that_is_not_done(gaps: list[int], data: st.DataObject) -> None:
    """E4: offsets have gaps, come in batches, and are finished in any order, a few at a time."""
    offsets = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    order = data.draw(st.permutations(offsets))
    tracker, model_done, waiting = OffsetTracker(), set[int](), list(offsets)
    delivered: list[int] = []
    unfinished: list[int] = []
    while waiting or unfinished:
        if waiting and (not unfinished or data.draw(st.booleans())):
            size = data.draw(st.integers(1, len(waiting)))
            tracker.delivered(waiting[:size])
            delivered += waiting[:size]
            waiting = waiting[size:]
            unfinished = [offset for offset in order if offset in delivered and offset not in model_done]
        else:
            size = data.draw(st.integers(1, len(unfinished)))
            tracker.done(unfinished[:size])
            model_done.update(unfinished[:size])
            unfinished = unfinished[size:]
        left = [offset for offset in delivered if offset not in model_done]
        assert tracker.position == (left[0] if left else delivered[-1] + 1)
        assert tracker.unfinished == len(left)


def test_what_comes_backwards_is_a_mistake() -> None:
    tracker = OffsetTracker()
    tracker.delivered([5, 6])
    with pytest.raises(InvariantViolated, match="offset 6 was delivered after 6"):
        tracker.delivered([6])


def _backlog(lanes: int = 1, queue_records: int = 10) -> Backlog:
    return Backlog(lanes=lanes, batch_records=4, batch_s=0.1, queue_records=queue_records, queue_bytes=10_000)


def _messages(count: int, keys: int = 1) -> list[Message]:
    return [
        Message(topic="t", partition=0, offset=n, key=b"k%d" % (n % keys), value=b"v", timestamp=(1, n))
        for n in range(count)
    ]


@given(keys=st.integers(1, 7), count=st.integers(1, 60), data=st.data())
def test_by_key_order_is_kept_and_nothing_ahead_is_committed(
    keys: int, count: int, data: st.DataObject
) -> None:
    """Several workers, simulated: each takes a batch, and they finish in any order, some not wholly."""
    backlog = _backlog(lanes=5, queue_records=100)
    holding = backlog.add(TopicPartition("t", 0), None)
    backlog.put(holding, _messages(count, keys))
    seen: dict[bytes | None, list[int]] = {}
    at_work, done = [], set[int]()
    while len(done) < count:
        work = backlog.take(0)
        if work is not None:
            at_work.append(work)
        if at_work and (work is None or data.draw(st.booleans())):
            finished = at_work.pop(data.draw(st.integers(0, len(at_work) - 1)))
            finished.done = data.draw(st.integers(1, len(finished.records)))
            for record in finished.records[: finished.done]:
                seen.setdefault(record.key, []).append(record.offset)
                done.add(record.offset)
            backlog.finish(finished, 0.0)
        position = holding.tracker.position
        assert position is not None
        assert all(offset in done for offset in range(position))
    assert all(offsets == sorted(offsets) for offsets in seen.values())
    assert holding.tracker.position == count
    assert holding.queued_records == holding.queued_bytes == 0


def test_what_is_gone_begins_no_more_and_what_was_begun_counts() -> None:
    backlog = _backlog()
    holding = backlog.add(TopicPartition("t", 0), None)
    backlog.put(holding, _messages(3))
    work = backlog.take(0)
    assert work is not None
    backlog.drop([TopicPartition("t", 0)])
    assert backlog.is_leaving(TopicPartition("t", 0))
    assert not backlog.wait_until_idle([holding], 0)
    work.done = len(work.records)
    backlog.finish(work)
    assert backlog.wait_until_idle([holding], 0)
    assert backlog.left() == [holding]
    assert backlog.take(0) is None
    assert holding.tracker.position == 1


def test_a_partition_that_is_full_is_told_and_one_half_empty_too() -> None:
    backlog = _backlog(queue_records=10)
    holding = backlog.add(TopicPartition("t", 0), None)
    backlog.put(holding, _messages(10))
    assert backlog.wait_for_room(0) == [holding]
    holding.paused = True
    assert backlog.wait_for_room(0) == []
    assert backlog.half_empty() == []
    while holding.queued_records > 5:
        work = backlog.take(0)
        assert work is not None
        work.done = len(work.records)
        backlog.finish(work, 0.0)
    assert backlog.half_empty() == [holding]


def test_a_lane_takes_more_at_once_while_records_are_quick() -> None:
    backlog = _backlog(queue_records=100)
    holding = backlog.add(TopicPartition("t", 0), None)
    backlog.put(holding, _messages(40))
    sizes = []
    for took_s in (0.0, 0.0, 9.0, 9.0, 9.0):
        work = backlog.take(0)
        assert work is not None
        sizes.append(len(work.records))
        work.done = len(work.records)
        backlog.finish(work, took_s)
    assert sizes == [1, 4, 4, 2, 1]


def test_room_is_free_while_a_store_commits_and_taken_again_if_that_fails() -> None:
    backlog = _backlog(queue_records=10)
    holding = backlog.add(TopicPartition("t", 0), None)
    holding.lanes[0].batch_records = 6
    backlog.put(holding, _messages(10))
    for done, queued in ((0, 10), (2, 8), (6, 2)):
        work = backlog.take(0)
        assert work is not None
        backlog.end(work)
        backlog.end(work)  # its transaction may be repeated
        assert holding.queued_records == holding.queued_bytes == queued + done - 6
        assert holding.tracker.position == work.records[0].offset  # nothing is done before the commit
        work.done = done
        backlog.finish(work)
        assert holding.queued_records == holding.queued_bytes == queued
