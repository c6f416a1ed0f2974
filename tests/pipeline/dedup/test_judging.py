"""A task's judge, batch after batch: what is new, and what comes again."""

from __future__ import annotations

import pyarrow as pa

from gapless.client.formats import sequence_header, source_header
from gapless.pipeline.dedup.judging import Judge
from gapless.pipeline.dedup.seen import Seen
from tests.pipeline.dedup.batches import INCARNATION
from tests.pipeline.dedup.test_seen import listed, seen


def headers_of(*records: tuple[str | bytes | None, int | bytes | None]) -> tuple[pa.Array, pa.Array]:
    """Source or header, sequence or header."""
    makers = [source_header(each, INCARNATION) if isinstance(each, str) else each for each, _ in records]
    numbers = [sequence_header(each) if isinstance(each, int) else each for _, each in records]
    return pa.array(makers, pa.binary()), pa.array(numbers, pa.binary())


def test_it_tells_what_is_new_and_what_comes_again() -> None:
    judge = Judge(seen(("other", 0, 9), ("till", 3, 3)))
    batches = {
        (("shop", 5), ("shop", 6), ("till", 0), ("shop", 5)): [True, True, True, False],
        ((None, None), ("shop", None), ("till", 1), ("shop", 7), ("till", 3)): [
            True,
            True,
            True,
            True,
            False,
        ],
        (("shop", b"short"), ("shop", b"much too long"), ("till", 1)): [True, True, False],
        (): [],
        (("shop", 2), (b"\x02garbled..name", 1), ("shop", b"\xff" * 8), ("shop", 6)): [
            True,
            True,
            True,
            False,
        ],
        (("late", 0), ("other", 4), (b"\x02garbled..name", 1), ("late", 0)): [True, False, True, False],
    }
    for records, expected in batches.items():
        assert judge.are_new(*headers_of(*records)).tolist() == expected
    found = judge.found()
    assert sorted(listed(found.new)) == [("late", 0, 0), ("shop", 2, 2), ("shop", 5, 7), ("till", 0, 1)]
    assert found.dropped == 6


def test_without_identities_it_finds_nothing() -> None:
    for batches in ([], [headers_of((None, None), ("shop", None))]):
        judge = Judge(Seen.nothing())
        for batch in batches:
            assert judge.are_new(*batch).all()
        assert (listed(judge.found().new), judge.found().dropped) == ([], 0)


def test_sliced_columns_are_read_where_they_begin() -> None:
    makers, numbers = headers_of(("shop", 0), ("shop", 1), ("shop", 2), ("shop", 2))
    judge = Judge(Seen.nothing())
    assert judge.are_new(makers.slice(1), numbers.slice(1)).tolist() == [True, True, False]
    assert listed(judge.found().new) == [("shop", 1, 2)]


def test_it_knows_sources_of_which_many_runs_were_seen() -> None:
    holes = [("shop", number, number) for number in range(0, 2_000, 2)]
    judge = Judge(seen(("early", 7, 7), *holes, ("till", 0, 10)))
    records = [("shop", number) for number in range(2_000)]
    expected = [number % 2 == 1 for number in range(2_000)]
    assert judge.are_new(*headers_of(*records)).tolist() == expected
    assert not judge.are_new(*headers_of(*records)).any()
    assert listed(judge.found().new) == [("shop", number, number) for number in range(1, 2_000, 2)]
