"""Read in small steps, a topic is judged as if it was read at once."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from gapless.audit import Hop
from gapless.audit.cluster import Ends
from gapless.audit.growing import before_of, fewer, held_too, promised_too, without_partition
from gapless.audit.judging import Held, Promised, Slot, Streams, judge_topic
from gapless.audit.reading import gathered
from gapless.audit.stretches import as_set
from gapless.audit.tally import Tally
from gapless.client.formats import sequence_header
from gapless.pipeline.dedup.runs import Runs
from tests.audit.planting import Planted, clean, plant
from tests.audit.test_judging import A, B, judged, named


class Steps:
    """Reads a planted topic bit by bit."""

    def __init__(self, planted: Planted) -> None:
        self.planted = planted
        self.streams = Streams()
        self.held = Held()
        self.promised = Promised()
        self.read_to = dict.fromkeys(planted.logs, 0)
        self.sealed_to = 0

    def step(self, counts: dict[int, int], seals: int) -> Hop:
        """So many more records of each partition, and so many more seals."""
        for seal in self.planted.seals[self.sealed_to : self.sealed_to + seals]:
            keys, firsts, lasts = zip(
                *(
                    (self.streams.key(maker, partition), first, last)
                    for maker, partition, first, last in seal
                ),
                strict=True,
            )
            news = Runs(*(np.array(column, np.int64) for column in (keys, firsts, lasts)))
            self.promised = promised_too(self.promised, Promised(as_set(news)))
        self.sealed_to += seals
        before = before_of(self.held, self.read_to, self.streams)
        tables, ends = [], {}
        for partition, log in self.planted.logs.items():
            start = self.read_to[partition]
            part = log[start : start + counts[partition]]
            self.read_to[partition] = end = start + len(part)
            ends[partition] = Ends(0, end, end)
            tally = Tally(before[partition])
            tally.add(
                pa.array([maker for maker, _ in part], pa.binary()),
                pa.array([sequence_header(sequence) for _, sequence in part], pa.binary()),
                pa.array(range(start, end), pa.int64()),
                pa.array([1_700_000_000_000 + 1000 * each for each in range(start, end)], pa.int64()),
            )
            rows = pa.Table.from_batches([tally.rows()])
            tables.append(rows.append_column("partition", pa.array([partition] * len(rows), pa.int32())))
        self.held = held_too(self.held, gathered(pa.concat_tables(tables), ends, self.streams))
        return judge_topic("orders", self.streams, self.promised, self.held)


@pytest.mark.parametrize("seed", range(60))
def test_many_steps_find_what_one_finds(seed: int) -> None:
    random = Random(seed)
    planted = clean(random, random.randrange(1, 5), random.randrange(1, 4), random.randrange(1, 400))
    plant(planted, random, random.randrange(12), ["drop", "repeat", "swap", "tear", "truncate", "seal again"])
    steps = Steps(planted)
    while any(steps.read_to[each] < len(log) for each, log in planted.logs.items()) or steps.sealed_to < len(
        planted.seals
    ):
        hop = steps.step({each: random.randrange(30) for each in planted.logs}, random.randrange(4))
    hop = steps.step(dict.fromkeys(planted.logs, 0), 0)
    at_once = judged(planted)
    assert named(hop) == named(at_once) == planted.expected
    assert hop.counts == at_once.counts
    assert {(f.fault, f.first_offset, f.last_offset) for f in hop.findings} == {
        (f.fault, f.first_offset, f.last_offset) for f in at_once.findings
    }
    assert _by_source(hop) == Counter(
        source for source, counts in hop.sources.items() for _ in range(counts.present + counts.duplicated)
    )


def _by_source(hop: Hop) -> Counter[str]:
    return Counter({source: sum(slots.values()) for source, slots in hop.timeline.present.items()})


def test_a_partition_that_is_forgotten_is_as_if_it_was_never_read() -> None:
    planted = Planted(
        {0: [(A, 0), (A, 0), (A, 2)], 1: [(A, 0), (B, 1), (B, 0)]}, [[(A, 0, 0, 2)], [(A, 1, 0, 0)]]
    )
    steps = Steps(planted)
    steps.step({0: 3, 1: 3}, 2)
    steps.held = without_partition(steps.held, 0, steps.streams)
    steps.read_to[0] = 0
    hop = steps.step({0: 3, 1: 0}, 0)
    assert named(hop) == planted.expected
    assert sum(_by_source(hop).values()) == 6
    assert steps.held.partitions[0].records == steps.held.partitions[1].records == 3


def test_slots_stay_few() -> None:
    slots = [Slot(A, 0, 1000 * number, 1000, 1) for number in range(10_000)]
    less = fewer(slots)
    assert sum(slot.records for slot in less) == 10_000
    assert 120 <= len(less) <= 240
    assert len({slot.width_ms for slot in less}) == 1
