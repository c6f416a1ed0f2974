"""What was seen, version by version: small, the same bytes for the same content, never taken for empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gapless.client.formats import sequence_header, source_header
from gapless.pipeline.dedup.by_identity import find
from gapless.pipeline.dedup.seen import KEPT_VERSIONS, Seen, SeenLost, Versions, from_bytes, to_bytes
from tests.pipeline.dedup.batches import INCARNATION, MemoryFolder


def seen(*rows: tuple[str, int, int]) -> Seen:
    makers = pa.array([source_header(source, INCARNATION) for source, _, _ in rows], pa.binary())
    columns = np.array([row[1:] for row in rows], np.int64).reshape(-1, 2)
    return Seen(makers, columns[:, 0].copy(), columns[:, 1].copy())


def listed(what: Seen) -> list[tuple[str, int, int]]:
    names = [maker[9:].decode() for maker in what.makers.to_pylist()]
    return list(zip(names, what.firsts.tolist(), what.lasts.tolist(), strict=True))


def rows_of(*records: tuple[int, str | bytes | None, int | bytes | None]) -> pa.RecordBatch:
    """offset, source or header, sequence or header."""
    makers = [source_header(each, INCARNATION) if isinstance(each, str) else each for _, each, _ in records]
    numbers = [sequence_header(each) if isinstance(each, int) else each for _, _, each in records]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([each[0] for each in records]),
            pa.array(makers, pa.binary()),
            pa.array(numbers, pa.binary()),
        ],
        ["offset", "made_by", "sequence"],
    )


def versions(folder: Any) -> Versions:
    return Versions(folder)


def test_a_task_finds_what_is_new_and_what_comes_again() -> None:
    batches = [
        rows_of((10, "shop", 5), (11, "shop", 6), (12, "till", 0), (13, "shop", 5)),
        rows_of((14, None, None), (15, "shop", None), (16, "till", 1), (20, "shop", 7), (21, "till", 3)),
        rows_of((22, "shop", 2), (23, b"\x02garbled..name", 1), (24, "shop", b"\xff" * 8)),
    ]
    found = find(iter(batches), seen(("other", 0, 9), ("till", 3, 3)))
    assert sorted(listed(found.new)) == [("shop", 2, 2), ("shop", 5, 7), ("till", 0, 1)]
    assert found.duplicates.tolist() == [13, 21]


def test_a_task_without_identities_finds_nothing() -> None:
    for batches in ([], [rows_of((1, None, None), (2, "shop", None))]):
        found = find(iter(batches), Seen.nothing())
        assert (listed(found.new), found.duplicates.tolist()) == ([], [])


def test_sliced_columns_are_read_where_they_begin() -> None:
    rows = rows_of((0, "shop", 0), (1, "shop", 1), (2, "shop", 2), (3, "shop", 2)).slice(1)
    found = find(iter([rows]), Seen.nothing())
    assert (listed(found.new), found.duplicates.tolist()) == ([("shop", 1, 2)], [3])


def test_the_same_content_is_the_same_bytes_however_it_came() -> None:
    one = seen(("a", 0, 4)).with_also(seen(("b", 7, 9), ("a", 5, 6)))
    two = Seen.nothing().with_also(seen(("b", 7, 9), ("a", 0, 6)))
    first = to_bytes({("t", 1): one, ("t", 0): two})
    assert first == to_bytes({("t", 0): two, ("t", 1): one}) == to_bytes({("t", 0): one, ("t", 1): two})
    read = from_bytes(first)
    assert list(read) == [("t", 0), ("t", 1)]
    assert [listed(what) for what in read.values()] == [[("a", 0, 6), ("b", 7, 9)]] * 2
    assert from_bytes(to_bytes({})) == {}


def test_a_thousand_sources_cost_kilobytes_whatever_they_sent() -> None:
    """F2: a key for each of ten million records would be hundreds of megabytes."""
    sources = [(f"source-{number:04}", 0, 10_000 + number % 3) for number in range(1_000)]
    table = {("orders", partition): Seen.nothing().with_also(seen(*sources)) for partition in range(4)}
    assert len(to_bytes(table)) < 40_000


def test_a_batch_reads_the_version_before_it_and_not_its_own() -> None:
    folder: Any = MemoryFolder()
    first = versions(folder)
    assert first.before(0) == {}
    first.write(0, {("t", 0): seen(("a", 0, 4))})
    assert listed(first.before(1)[("t", 0)]) == [("a", 0, 4)]
    first.write(1, {("t", 0): seen(("a", 0, 9))})
    again = versions(folder)
    assert listed(again.before(1)[("t", 0)]) == [("a", 0, 4)]
    again.write(1, {("t", 0): seen(("a", 0, 9))})
    assert listed(versions(folder).before(2)[("t", 0)]) == [("a", 0, 9)]
    assert versions(folder).before(0) == {}


def test_dedup_may_begin_in_a_later_batch() -> None:
    folder: Any = MemoryFolder()
    late = versions(folder)
    assert late.before(7) == {}
    late.write(7, {})
    assert versions(folder).before(8) == {}
    with pytest.raises(SeenLost):
        versions(folder).before(6)


@pytest.mark.parametrize("lost", ["dedup/4.parquet", "dedup/first"])
def test_a_version_that_is_gone_is_an_error_and_never_empty(lost: str) -> None:
    folder: Any = MemoryFolder()
    writer = versions(folder)
    for batch in range(5):
        writer.before(batch)
        writer.write(batch, {})
    folder.delete(lost)
    with pytest.raises(SeenLost, match="bring the whole"):
        versions(folder).before(5)


def test_a_garbled_version_is_told() -> None:
    folder: Any = MemoryFolder({"dedup/first": b"0", "dedup/0.parquet": b"PAR1 nothing of it"})
    with pytest.raises(SeenLost, match="cannot be read"):
        versions(folder).before(1)


def test_old_versions_are_removed_also_those_of_an_earlier_process() -> None:
    folder: Any = MemoryFolder({"dedup/first": b"0"})
    for batch in range(KEPT_VERSIONS + 20):
        folder.write(f"dedup/{batch}.parquet", to_bytes({}))
    writer = versions(folder)
    for batch in range(KEPT_VERSIONS + 20, KEPT_VERSIONS + 30):
        writer.before(batch)
        writer.write(batch, {})
    kept = sorted(int(name.split(".")[0]) for name in folder.names("dedup") if name != "first")
    assert kept == list(range(30, KEPT_VERSIONS + 30))
