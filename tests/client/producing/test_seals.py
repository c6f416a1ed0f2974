"""Seals promise exactly what was acknowledged, each sequence once (decision: audit by promise)."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.client.formats import Interval, Seal
from gapless.client.producing.seals import MAX_INTERVALS_PER_SEAL, Acknowledged
from gapless.client.producing.upkeep import Promised

INCARNATION = bytes(range(8))


def sequences_of(intervals: tuple[Interval, ...]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for topic, partition, first, last in intervals:
        found[topic, partition].extend(range(first, last + 1))
    return dict(found)


def test_acknowledgements_in_order_are_one_interval_however_many() -> None:
    acknowledged = Acknowledged()
    for sequence in range(1000):
        acknowledged.note("orders", 1, sequence)
    acknowledged.note_run("orders", 1, 1000, 4999)
    acknowledged.note_many("payments", 0, [7, 8, 9, 12])
    assert acknowledged.take_with_counts() == (
        (
            Interval("orders", 1, 0, 4999),
            Interval("payments", 0, 7, 9),
            Interval("payments", 0, 12, 12),
        ),
        {"orders": 5000, "payments": 4},
    )


def test_what_was_taken_is_not_promised_again_and_what_was_put_back_is() -> None:
    acknowledged = Acknowledged()
    acknowledged.note_run("orders", 0, 0, 9)
    taken = acknowledged.take()
    assert not acknowledged.anything
    assert acknowledged.take() == ()
    acknowledged.note_run("orders", 0, 10, 19)
    acknowledged.put_back(taken)
    assert acknowledged.take_with_counts() == ((Interval("orders", 0, 0, 19),), {"orders": 20})


def test_counts_go_on_from_what_an_earlier_process_acknowledged() -> None:
    acknowledged = Acknowledged({"orders": 100})
    acknowledged.note("orders", 0, 100)
    assert acknowledged.take_with_counts()[1] == {"orders": 101}


def test_seals_stay_small_and_add_up() -> None:
    acknowledged = Acknowledged()
    for partition in range(MAX_INTERVALS_PER_SEAL + 1):
        acknowledged.note(f"{'t' * 249}", partition, 3)
    seals = acknowledged.take_seals("me", INCARNATION, "interval")
    assert [len(seal.intervals) for seal in seals] == [MAX_INTERVALS_PER_SEAL, 1]
    assert all(len(seal.to_bytes()) < 1_000_000 for seal in seals)
    assert all(Seal.from_bytes(seal.to_bytes()) == seal for seal in seals)
    assert Acknowledged().take_seals("me", INCARNATION, "close") == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 8)), max_size=60))
def test_any_order_and_any_overlap_give_each_sequence_once(runs: list[tuple[int, int, int]]) -> None:
    acknowledged = Acknowledged()
    expected: dict[tuple[str, int], set[int]] = defaultdict(set)
    for partition, first, more in runs:
        acknowledged.note_run("orders", partition, first, first + more)
        expected["orders", partition].update(range(first, first + more + 1))
    intervals, counts = acknowledged.take_with_counts()
    assert sequences_of(intervals) == {where: sorted(found) for where, found in expected.items()}
    assert counts.get("orders", 0) == sum(map(len, expected.values()))
    for left, right in pairwise(intervals):
        assert left[:2] != right[:2] or left.last + 1 < right.first


def test_a_restart_promises_nothing_of_incarnations_that_it_knows_only_some_records_of() -> None:
    """A spool to fall back on holds some records of its producers; of the others it knows nothing."""
    own, other = b"8 bytes.", b"of other"
    promised = Promised("orders-api")
    promised.recover(own, {(own, "orders", 0): 5, (other, "orders", 0): 11})
    [seal] = promised.take("close")
    assert (seal.incarnation, seal.intervals, seal.counts) == (
        own,
        (Interval("orders", 0, 0, 4),),
        {"orders": 5},
    )
