"""What a task makes of the ledger's rows, without Spark."""

from __future__ import annotations

import pyarrow as pa

from gapless.audit.reading import COUNTED, REPAIRED, SEALED, TIMELY, UNREADABLE, _united
from gapless.audit.tally import HELD, WHEN
from gapless.client.formats import source_header

A, B = (source_header(name, name.encode() * 8) for name in "ab")
Row = tuple[bool, bytes | None, int | None, int | None, int | None, int | None, bool | None, int | None]
KINDS = (
    *(("readable", pa.bool_()), ("maker", pa.binary()), ("partition", pa.int32()), ("first", pa.int64())),
    *(("last", pa.int64()), ("ms", pa.int64()), ("repaired", pa.bool_()), ("count", pa.int64())),
)


def united(*batches: list[Row]) -> set[tuple[object, ...]]:
    """Kind, maker, partition, first and last of the rows that come out."""
    given = (
        pa.RecordBatch.from_arrays(
            [
                pa.array(column, kind)
                for column, (_, kind) in zip(zip(*rows, strict=True), KINDS, strict=True)
            ],
            names=[name for name, _ in KINDS],
        )
        for rows in batches
    )
    (found,) = _united(given)
    return {
        (row["kind"], row["maker"], row["partition"], row["first"], row["last"]) for row in found.to_pylist()
    }


def test_seals_become_as_few_rows_as_can_be() -> None:
    found = united(
        [
            (True, A, 0, 0, 4, 5000, False, 5),
            (True, A, 0, 5, 9, 6000, False, 10),
            (True, B, 1, 0, 0, 6000, False, None),
        ],
        [(True, A, 0, 8, 12, 7000, False, 13), (True, A, 0, 3, 3, -1, True, 12)],
    )
    assert {row for row in found if row[0] == HELD} == {(HELD, A, 0, 0, 12), (HELD, B, 1, 0, 0)}
    assert {row for row in found if row[0] == TIMELY} == {(TIMELY, A, 0, 0, 12), (TIMELY, B, 1, 0, 0)}
    assert {row for row in found if row[0] == SEALED and row[1] == A} == {
        (SEALED, A, 0, 4, 5000),
        (SEALED, A, 0, 9, 6000),
        (SEALED, A, 0, 12, 7000),
    }
    assert {row for row in found if row[0] == REPAIRED} == {(REPAIRED, A, 0, 3, 3)}
    assert {row for row in found if row[0] == COUNTED} == {(COUNTED, A, -1, 0, 13)}
    assert (
        sum(int(str(row[4])) for row in found if row[0] == WHEN) == 16
    )  # each promise counts, but for repairs
    assert (UNREADABLE, None, -1, 0, 0) in found


def test_what_is_no_seal_is_counted_and_a_seal_of_other_topics_promises_nothing() -> None:
    nothing: Row = (False, None, None, None, None, None, None, None)
    found = united([nothing, (True, A, None, None, None, 5000, False, None)], [nothing, nothing])
    assert found == {(UNREADABLE, None, -1, 0, 3)}
