"""What was seen, version by version: small, the same bytes for the same content, never taken for empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gapless.client.formats import source_header
from gapless.pipeline.dedup.seen import KEPT_VERSIONS, Seen, SeenLost, Versions, from_bytes, to_bytes
from tests.pipeline.dedup.batches import INCARNATION, MemoryFolder


def seen(*rows: tuple[str, int, int]) -> Seen:
    makers = pa.array([source_header(source, INCARNATION) for source, _, _ in rows], pa.binary())
    columns = np.array([row[1:] for row in rows], np.int64).reshape(-1, 2)
    return Seen(makers, columns[:, 0].copy(), columns[:, 1].copy())


def listed(what: Seen) -> list[tuple[str, int, int]]:
    names = [maker[9:].decode() for maker in what.makers.to_pylist()]
    return list(zip(names, what.firsts.tolist(), what.lasts.tolist(), strict=True))


def versions(folder: Any) -> Versions:
    return Versions(folder)


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
