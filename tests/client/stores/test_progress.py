"""Progress against the plain truth: a set of what was done, and a table that only its changes write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gapless.client.stores.progress import MAX_SEQUENCE, Mark, MarkChange, Progress
from tests.client.stores.kits import INCARNATION, record

Arrival = tuple[str, int | None]
"""A source and a sequence; None for a record that has no identity."""
batches = st.lists(
    st.tuples(
        st.booleans(),
        st.lists(st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 25))), max_size=12),
    ),
    max_size=8,
)


class Table:
    """What the statements of a store do with a change."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, bytes, int], int] = {}

    def write(self, changes: list[MarkChange]) -> None:
        for mark, swallows in changes:
            if swallows:
                inside = range(mark.first + 1, mark.last + 1)
                stream = (mark.source, mark.incarnation)
                self.rows = {
                    key: last for key, last in self.rows.items() if key[:2] != stream or key[2] not in inside
                }
        for mark, _ in changes:
            self.rows[mark.source, mark.incarnation, mark.first] = mark.last

    def marks(self) -> list[Mark]:
        return [
            Mark(source, incarnation, first, last) for (source, incarnation, first), last in self.rows.items()
        ]


@given(batches)
def test_progress_knows_what_a_set_of_records_knows(given_batches: list[tuple[bool, list[Arrival]]]) -> None:
    progress, table, done = Progress(), Table(), set[Arrival]()
    offset = 0
    for commits, arrivals in given_batches:
        pending: set[Arrival] = set()
        for index, (source, sequence) in enumerate(arrivals):
            known = sequence is not None and (source, sequence) in done | pending
            assert progress.advance(record(offset + index, sequence, source=source)) == (not known)
            pending.add((source, sequence))
        if commits:
            table.write(progress.changes())
            progress.commit()
            done |= pending
            offset += len(arrivals)
        else:
            progress.rollback()
        assert progress.next_offset == (offset or None)
        assert sorted(progress.marks()) == sorted(table.marks())
        assert not progress.changes()
    marked = {(mark.source, number) for mark in table.marks() for number in range(mark.first, mark.last + 1)}
    assert marked == {(source, sequence) for source, sequence in done if sequence is not None}


runs = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 6), st.booleans()), max_size=8
)
"""Source, first sequence, how many follow it, and whether the batch ends (True: committed) after them."""


@given(runs, st.booleans())
def test_many_at_once_is_the_same_as_one_by_one(
    given_runs: list[tuple[str, int, int, bool]], by_identity: bool
) -> None:
    single, whole = Progress(by_identity=by_identity), Progress(by_identity=by_identity)
    offset, batch = 0, []
    for source, first, more, commits in [*given_runs, ("a", 3, 0, True)]:
        batch += [
            record(offset + n, sequence, source=source)
            for n, sequence in enumerate([*range(first, first + more), None])
        ]
        offset += more + 1
        new = [each for each in batch if single.advance(each)]
        assert whole.advance_all(batch) == new
        assert (whole.next_offset, whole.changes()) == (single.next_offset, single.changes())
        for progress in (single, whole):
            if commits:
                progress.commit()
            else:
                progress.rollback()
        assert whole.marks() == single.marks()
        batch = batch[-3:]  # some come again


@given(batches)
def test_progress_that_was_read_back_is_the_same(given_batches: list[tuple[bool, list[Arrival]]]) -> None:
    progress = Progress()
    for offset, (source, sequence) in enumerate(each for _, batch in given_batches for each in batch):
        progress.advance(record(offset, sequence, source=source))
    again = Progress(progress.next_offset, progress.marks())
    assert again.marks() == progress.marks()
    assert again.next_offset == progress.next_offset


def test_the_offset_alone_tells_that_a_record_is_done() -> None:
    progress = Progress(10)
    assert not progress.advance(record(9))
    assert progress.advance(record(10))
    assert progress.is_past(10)
    assert not progress.is_past(11)


def test_incarnations_are_apart() -> None:
    progress = Progress()
    assert progress.advance(record(0, 0))
    assert progress.advance(record(1, 0, incarnation=b"anotherr"))
    assert not progress.advance(record(2, 0))


def test_a_sequence_that_no_database_can_keep_is_no_identity() -> None:
    progress = Progress()
    assert progress.advance(record(0, MAX_SEQUENCE + 1))
    assert progress.advance(record(1, MAX_SEQUENCE + 1))
    assert progress.advance(record(2, MAX_SEQUENCE))
    assert progress.marks() == [Mark("shop", INCARNATION, MAX_SEQUENCE, MAX_SEQUENCE)]
