"""What a partition holds, against a count that takes one record after the other."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gapless.audit.tally import AGAIN, BEYOND, HELD, LATE, WHEN, WHOLE, Tally
from gapless.client.formats import sequence_header, source_header

MAKERS = [source_header(f"source-{number}", bytes([number]) * 8) for number in range(5)]
Record = tuple[bytes | None, int]


def rows_of(records: list[Record], batch: int, most_named: int = 1000) -> list[dict[str, Any]]:
    """What a tally says of records at the offsets 100, 102, 104 …, one each second."""
    tally = Tally(most_named=most_named)
    for at in range(0, len(records), batch):
        part = records[at : at + batch]
        offsets = [100 + 2 * number for number in range(at, at + len(part))]
        tally.add(
            pa.array([maker for maker, _ in part], pa.binary()),
            pa.array(
                [None if maker is None else sequence_header(number) for maker, number in part], pa.binary()
            ),
            pa.array(offsets),
            pa.array([1000 * offset for offset in offsets]),
        )
    return tally.rows().to_pylist()


def faulty(random: Random, records: int) -> list[Record]:
    """What sources send in turn, with some records left out, sent again, exchanged, or without a name."""
    following = Counter[bytes]()
    sent: list[Record] = []
    for _ in range(records):
        maker = random.choice(MAKERS)
        fault = random.random()
        if fault < 0.02:
            following[maker] += random.randrange(1, 4)
        elif fault < 0.06 and sent:
            at = random.randrange(len(sent))
            sent += sent[at : at + random.randrange(1, 20)]
        elif fault < 0.08:
            sent.append((None, 0))
        sent.append((maker, following[maker]))
        following[maker] += 1
    for _ in range(records // 50):
        at = random.randrange(len(sent) - 1)
        sent[at], sent[at + 1] = sent[at + 1], sent[at]
    return sent


def one_by_one(
    records: list[Record],
) -> tuple[set[Record], list[tuple[Record, int]], list[tuple[Record, int]]]:
    """What is there, came again, came late; the latter two with their offsets."""
    seen: set[Record] = set()
    again, late = [], []
    highest: dict[bytes, int] = {}
    for place, record in enumerate(records):
        maker, number = record
        if maker is None:
            continue
        if record in seen:
            again.append((record, 100 + 2 * place))
        elif number < highest.get(maker, -1):
            late.append((record, 100 + 2 * place))
        seen.add(record)
        highest[maker] = max(number, highest.get(maker, -1))
    return seen, again, late


@pytest.mark.parametrize("seed", range(40))
def test_every_record_that_is_there_comes_again_or_late_is_named(seed: int) -> None:
    random = Random(seed)
    records = faulty(random, random.randrange(1, 400))
    seen, again, late = one_by_one(records)
    rows = rows_of(records, batch=random.randrange(1, 100))
    assert named(rows, HELD) == Counter(seen)
    assert named(rows, AGAIN) == Counter(record for record, _ in again)
    assert named(rows, LATE) == Counter(record for record, _ in late)
    for kind, expected in ((AGAIN, again), (LATE, late)):
        places = {offset: record for record, offset in expected}
        for row in rows:
            if row["kind"] == kind:
                assert places[row["first_offset"]] == (row["maker"], row["first"])
                assert places[row["last_offset"]] == (row["maker"], row["last"])


@pytest.mark.parametrize("seed", range(20))
def test_both_ends_of_a_stretch_tell_where_they_are(seed: int) -> None:
    random = Random(seed)
    records = faulty(random, 200)
    first_at: dict[Record, int] = {}
    for place, record in enumerate(records):
        first_at.setdefault(record, place)
    stretches = [row for row in rows_of(records, batch=random.randrange(1, 50)) if row["kind"] == HELD]
    assert stretches
    for row in stretches:
        for end in ("first", "last"):
            place = first_at[row["maker"], row[end]]
            assert row[f"{end}_row"] == place
            assert row[f"{end}_offset"] == 100 + 2 * place
            assert row[f"{end}_ms"] == 1000 * (100 + 2 * place)


def test_stretches_do_not_touch() -> None:
    rows = rows_of([(MAKERS[0], number) for number in range(1000)], batch=7)
    assert [(row["first"], row["last"]) for row in rows if row["kind"] == HELD] == [(0, 999)]


def test_what_came_again_is_whole_though_batches_cut_it() -> None:
    rows = rows_of([(MAKERS[0], number % 100) for number in range(200)], batch=7)
    found = [(row["first"], row["last"], row["first_offset"]) for row in rows if row["kind"] == AGAIN]
    assert found == [(0, 99, 300)]


def test_past_the_limit_repeated_and_late_records_are_counted() -> None:
    swapped = [(MAKERS[0], number ^ 1) for number in range(100)]
    rows = rows_of([*swapped, *reversed(swapped)], batch=30, most_named=10)
    assert sum(row["last"] - row["first"] + 1 for row in rows if row["kind"] == LATE) == 10
    (beyond,) = [row for row in rows if row["kind"] == BEYOND]
    assert (beyond["maker"], beyond["last"]) == (MAKERS[0], 40)
    named_again = sum(row["last"] - row["first"] + 1 for row in rows if row["kind"] == AGAIN)
    assert named_again + int(beyond["first"]) == 100


def test_the_partition_as_a_whole() -> None:
    rows = rows_of([(MAKERS[0], 0), (None, 0), (MAKERS[1], 0), (b"\x02no source of ours", 0)], batch=3)
    (whole,) = [row for row in rows if row["kind"] == WHOLE]
    assert (whole["first"], whole["last"]) == (2, 4)
    assert (whole["first_offset"], whole["last_offset"]) == (100, 106)


def test_a_sequence_that_nobody_reaches_is_no_identity() -> None:
    rows = rows_of([(MAKERS[0], 2**62), (MAKERS[0], 2**64 - 1), (MAKERS[0], 2**62 - 1)], batch=3)
    assert [(row["first"], row["last"]) for row in rows if row["kind"] in (HELD, WHOLE)] == [
        (2, 3),
        (2**62 - 1, 2**62 - 1),
    ]


def test_records_by_time_add_up_however_long_it_was() -> None:
    tally = Tally()
    count = 5000
    times = np.cumsum(np.full(count, 37_000)) + 1_700_000_000_000
    numbers = [sequence_header(number) for number in range(count)]
    for at in range(0, count, 100):
        tally.add(
            pa.array([MAKERS[0]] * 100, pa.binary()),
            pa.array(numbers[at : at + 100], pa.binary()),
            pa.array(range(at, at + 100)),
            pa.array(times[at : at + 100]),
        )
    slots = [row for row in tally.rows().to_pylist() if row["kind"] == WHEN]
    assert sum(row["last"] for row in slots) == count
    assert 100 <= len(slots) <= 240
    (width,) = {row["first"] for row in slots}
    assert all(row["first_ms"] % width == 0 for row in slots)
    assert slots[0]["first_ms"] <= times[0] < slots[0]["first_ms"] + width


def test_no_time_makes_no_harm() -> None:
    tally = Tally()
    tally.add(
        pa.array([MAKERS[0]] * 3, pa.binary()),
        pa.array([sequence_header(number) for number in range(3)], pa.binary()),
        pa.array([0, 1, 2]),
        pa.array([-1, 2**63 - 1, 1_700_000_000_000]),
    )
    slots = [row for row in tally.rows().to_pylist() if row["kind"] == WHEN]
    assert sum(row["last"] for row in slots) == 1


def named(rows: list[dict[str, Any]], kind: str) -> Counter[Record]:
    found: Counter[Record] = Counter()
    for row in rows:
        if row["kind"] == kind:
            maker, first, last = row["maker"], row["first"], row["last"]
            assert isinstance(maker, bytes)
            found.update((maker, number) for number in range(int(first), int(last) + 1))
    return found
