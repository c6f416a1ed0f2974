"""The judgement, without Spark: topics with planted faults, each of which must be named, and no other."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from gapless.audit import Fault, Finding, Hop, Report, Verdict
from gapless.audit.cluster import Ends
from gapless.audit.judging import Held, Promised, Streams, judge_topic
from gapless.audit.reading import gathered
from gapless.audit.sealing import Sealed, sealed_too
from gapless.audit.stretches import Stretches, as_set, no_stretches
from gapless.audit.tally import Tally
from gapless.client.formats import sequence_header, source_header
from gapless.pipeline.dedup.runs import Runs, no_runs
from tests.audit.planting import EDITS, HARMLESS, Name, Planted, clean, plant

A, B = (source_header(name, name.encode() * 8) for name in "ab")
TIME_MS = 1_700_000_000_000
"""Of the record at offset 0, if there is one; each offset is a millisecond later."""


@pytest.mark.parametrize("seed", range(300))
def test_each_planted_fault_is_named_and_no_other(seed: int) -> None:
    random = Random(seed)
    planted = clean(random, random.randrange(1, 6), random.randrange(1, 4), random.randrange(1, 300))
    plant(planted, random, random.randrange(12))
    hop = judged(planted)
    assert named(hop) == planted.expected, planted.edits
    for finding in hop.findings:
        assert is_where_it_says(finding, planted), finding
    assert hop.counts.unpromised == planted.unpromised
    assert hop.counts.promised == len(planted.promised)
    assert hop.counts.expired == len(planted.expired)


@pytest.mark.parametrize("kind", EDITS)
@pytest.mark.parametrize("seed", range(30))
def test_each_kind_of_edit_alone(kind: str, seed: int) -> None:
    random = Random(seed)
    planted = plant(clean(random, 3, 2, 200), random, 1, [kind])
    assert named(judged(planted)) == planted.expected


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_found_in_a_clean_topic(seed: int) -> None:
    random = Random(seed)
    planted = clean(random, random.randrange(1, 6), random.randrange(1, 4), random.randrange(1, 300))
    plant(planted, random, random.randrange(8), HARMLESS)
    hop = judged(planted)
    assert not hop.counts.faults
    assert not hop.findings


def test_lost_records_are_between_their_neighbours() -> None:
    hop = judged(Planted({0: [(A, 0), (B, 0), (A, 3)]}, [[(A, 0, 0, 3)], [(B, 0, 0, 0)]]))
    (finding,) = hop.findings
    assert (finding.fault, finding.source, finding.incarnation) == (Fault.LOST, "a", "61" * 8)
    assert (finding.first, finding.last, finding.records) == (1, 2, 2)
    assert (finding.first_offset, finding.last_offset) == (0, 2)
    assert str(finding).startswith("lost: a (61616161) orders-0 1 to 2, between offsets 0 and 2")


def test_what_is_lost_at_the_end_has_no_neighbour_behind_it() -> None:
    hop = judged(Planted({0: [(A, 0)]}, [[(A, 0, 0, 1)], [(B, 0, 0, 0)]]))
    assert [(each.source, each.first_offset, each.last_offset) for each in hop.findings] == [
        ("a", 0, None),
        ("b", None, None),
    ]


def test_what_compaction_may_have_removed_is_not_lost() -> None:
    """Offsets 0 and 2 are there, offset 1 is not: compaction removed one record, and no more than one."""
    planted = Planted({0: [(A, 0), (A, 2)]}, [[(A, 0, 0, 2)]])
    hop = judged(planted, offsets={0: [0, 2]}, compacted=True)
    assert (hop.counts.compacted, hop.counts.lost) == (1, 0)
    hop = judged(planted, offsets={0: [0, 1]}, compacted=True)
    assert (hop.counts.compacted, hop.counts.lost) == (0, 1)
    planted = Planted({0: [(A, 0), (A, 4)]}, [[(A, 0, 0, 4)]])
    hop = judged(planted, offsets={0: [0, 3]}, compacted=True)
    assert (hop.counts.compacted, hop.counts.lost) == (2, 1)
    (finding,) = hop.findings
    assert (finding.first, finding.last, finding.records) == (1, 3, 1)


def test_compaction_is_proven_where_each_empty_offset_is_that_of_a_missing_record() -> None:
    """The ends of transactions are empty, too, and excuse nothing."""
    planted = Planted({0: [(A, 0), (A, 2)]}, [[(A, 0, 0, 2)]])
    assert not judged(planted, offsets={0: [0, 2]}, compacted=True).doubts
    # Of three transactions of a record each, with an end behind it, the second is lost.
    (doubt,) = judged(planted, offsets={0: [0, 2]}, compacted=True, end={0: 4}).doubts
    assert doubt == (
        "1 records are missing in orders-0, and 2 offsets hold none: some may be the ends of transactions, "
        "so nobody can tell whether compaction has taken them all"
    )
    # The end of the one transaction is where its last record should be.
    planted = Planted({0: [(A, 0)]}, [[(A, 0, 0, 1)]])
    assert len(judged(planted, offsets={0: [0]}, compacted=True, end={0: 2}).doubts) == 1
    # One empty offset is no excuse for two records.
    planted = Planted({0: [(A, 0), (B, 0), (A, 2), (B, 2)]}, [[(A, 0, 0, 2)], [(B, 0, 0, 2)]])
    assert len(judged(planted, offsets={0: [0, 1, 3, 4]}, compacted=True).doubts) == 1
    # Where nothing is missing nobody asks.
    planted = Planted({0: [(A, 0)]}, [[(A, 0, 0, 0)]])
    assert not judged(planted, offsets={0: [0]}, compacted=True, end={0: 2}).doubts


def test_offsets_of_markers_excuse_nothing_in_a_topic_that_is_not_compacted() -> None:
    hop = judged(Planted({0: [(A, 0), (A, 2)]}, [[(A, 0, 0, 2)]]), offsets={0: [0, 5]})
    assert hop.counts.lost == 1


def test_behind_an_open_transaction_nothing_is_certain() -> None:
    hop = judged(Planted({0: [(A, 0)]}, [[(A, 0, 0, 4)]]), high={0: 9})
    assert (hop.counts.hidden, hop.counts.lost) == (4, 0)
    assert "behind a transaction" in hop.doubts[0]
    # What is missing before a record that can be seen is not behind anything.
    hop = judged(Planted({0: [(A, 0), (A, 2)]}, [[(A, 0, 0, 4)]]), high={0: 9})
    assert (hop.counts.hidden, hop.counts.lost) == (2, 1)


def test_what_is_in_a_spool_is_pending() -> None:
    planted = Planted({0: [(A, 0), (A, 1)]}, [[(A, 0, 0, 1)]])
    hop = judged(planted, pending=[(A, 0, 1, 4)])
    assert (hop.counts.pending, hop.counts.lost, hop.counts.open) == (3, 0, 0)
    assert not hop.doubts


def test_a_gap_that_nobody_promised_is_open() -> None:
    hop = judged(Planted({0: [(A, 0), (A, 3)]}, [[(A, 0, 0, 0)]]))
    assert (hop.counts.open, hop.counts.lost, hop.counts.unpromised) == (2, 0, 1)
    assert not hop.doubts


def test_seals_that_tell_of_fewer_records_than_were_counted_leave_a_doubt() -> None:
    """The seal in the middle is gone, and with it records: nobody promises them, but somebody counted."""
    planted = Planted({0: [(A, 0), (A, 3)]}, [[(A, 0, 0, 0)], [(A, 0, 3, 3)]])
    assert not judged(planted, counts={A: 2}).doubts
    assert "2 records are missing" in judged(planted, counts={A: 4}).doubts[0]


def test_records_that_were_counted_and_are_neither_there_nor_promised_leave_a_doubt() -> None:
    """The seal of partition 0's end is gone, and so are the records. A later seal still counts them."""
    planted = Planted({0: [(A, 0), (A, 1)], 1: [(A, 0)]}, [[(A, 0, 0, 1)], [(A, 1, 0, 0)]])
    assert not judged(planted, counts={A: 3}).doubts
    assert "2 records are missing" in judged(planted, counts={A: 5}).doubts[0]
    # They are there, and only their seal is not.
    planted.logs[0] += [(A, 2), (A, 3)]
    assert not judged(planted, counts={A: 5}).doubts
    # Nothing else is known of who counts them.
    assert "7 records are missing" in judged(planted, counts={A: 5, B: 7}).doubts[0]


def test_no_more_has_expired_than_retention_can_have_taken() -> None:
    """Offsets 0 to 2 are gone, and with them three records at most. Of one source nothing is there."""
    planted = Planted({0: [(A, 2), (A, 3)]}, [[(A, 0, 0, 3)], [(B, 0, 0, 0)]], earliest={0: 3})
    hop = judged(planted)
    assert (hop.counts.expired, hop.counts.lost, hop.doubts) == (3, 0, [])
    planted.seals.append([(B, 0, 1, 4)])
    assert judged(planted).doubts == [
        "7 records are missing before the first of orders-0, and retention can have taken 3 at most"
    ]


def test_without_promises_nothing_is_clean() -> None:
    hop = judged(Planted({0: [(A, 0)]}, []))
    assert hop.doubts == ["no seal of the ledger promises a record of orders"]
    hop = judged(Planted({0: []}, [[(A, 0, 0, 5)]], earliest={0: 6}))
    assert hop.doubts == ["retention has taken all that was promised of orders"]


def judged(
    planted: Planted,
    *,
    offsets: dict[int, list[int]] | None = None,
    high: dict[int, int] | None = None,
    pending: list[tuple[bytes, int, int, int]] | None = None,
    counts: dict[bytes, int] | None = None,
    compacted: bool = False,
    end: dict[int, int] | None = None,
    repaired: list[tuple[bytes, int, int, int]] | None = None,
    sealed: list[tuple[bytes, int, int, int]] | None = None,
    fresh: list[tuple[bytes, int, int, int]] | None = None,
) -> Hop:
    streams = Streams()
    promised = Promised(_runs([each for seal in planted.seals for each in seal], streams), counts or {})
    promised.repaired, promised.fresh = _runs(repaired or [], streams), _runs(fresh or [], streams)
    for maker, partition, last, time_ms in sealed or []:
        points = (np.array([each]) for each in (streams.key(maker, partition), last, time_ms))
        promised.sealed = sealed_too(promised.sealed, Sealed(*points))
    there = _held(planted, streams, offsets or {}, high or {})
    for partition, at in (end or {}).items():
        there.partitions[partition] = there.partitions[partition]._replace(end=at, high=at)
    return judge_topic(
        "orders",
        streams,
        promised,
        there,
        pending=_runs(pending or [], streams),
        compacted=compacted,
        aborted=_aborted(planted, streams),
    )


def _runs(intervals: list[tuple[bytes, int, int, int]], streams: Streams) -> Runs:
    if not intervals:
        return no_runs()
    rows = [(streams.key(maker, partition), first, last) for maker, partition, first, last in intervals]
    return as_set(Runs(*(pa.array(column).to_numpy() for column in zip(*rows, strict=True))))


def _aborted(planted: Planted, streams: Streams) -> Stretches:
    """What was promised, and is in the log and not among what its readers see."""
    promised = planted.promised
    hidden = {
        partition: [
            (maker, sequence)
            for maker, sequence in log
            if (maker, sequence) not in planted.logs[partition] and (maker, partition, sequence) in promised
        ]
        for partition, log in planted.aborted.items()
    }
    return _held(Planted(hidden, []), streams, {}, {}).held if hidden else no_stretches()


def _held(planted: Planted, streams: Streams, offsets: dict[int, list[int]], high: dict[int, int]) -> Held:
    tables, ends = [], {}
    for partition, log in planted.logs.items():
        start = planted.earliest.get(partition, 0)
        places = offsets.get(partition, list(range(start, start + len(log))))
        end = places[-1] + 1 if places else start
        ends[partition] = Ends(start, end, high.get(partition, end))
        tally = Tally()
        tally.add(
            pa.array([maker for maker, _ in log], pa.binary()),
            pa.array([sequence_header(sequence) for _, sequence in log], pa.binary()),
            pa.array(places, pa.int64()),
            pa.array([TIME_MS + each for each in places], pa.int64()),
        )
        rows = pa.Table.from_batches([tally.rows()])
        tables.append(rows.append_column("partition", pa.array([partition] * len(rows), pa.int32())))
    return gathered(pa.concat_tables(tables), ends, streams)


def named(hop: Hop) -> dict[Fault, Counter[Name]]:
    found: dict[Fault, Counter[Name]] = {fault: Counter() for fault in Fault}
    for each in hop.findings:
        maker = source_header(each.source, bytes.fromhex(each.incarnation))
        found[each.fault].update((maker, each.partition, n) for n in range(each.first, each.last + 1))
    return found


def is_where_it_says(finding: Finding, planted: Planted) -> bool:
    """Copies and late ones are at both offsets; lost ones between their neighbours. So it is with times."""
    maker = source_header(finding.source, bytes.fromhex(finding.incarnation))
    start = planted.earliest.get(finding.partition, 0)
    log = planted.logs[finding.partition]
    ends = ((finding.first_offset, finding.first_ms), (finding.last_offset, finding.last_ms))
    if any(ms != (None if at is None else TIME_MS + at) for at, ms in ends):
        return False
    if finding.fault is Fault.TORN:  # in the log, and not among what its readers see
        return None not in (finding.first_offset, finding.last_offset)
    there = [None if at is None else log[at - start] for at, _ in ends]
    if finding.fault is Fault.LOST:
        held = {sequence for who, sequence in log if who == maker}
        before = max((each for each in held if each < finding.first), default=None)
        after = min((each for each in held if each > finding.last), default=None)
        return there == [None if each is None else (maker, each) for each in (before, after)]
    return there == [(maker, finding.first), (maker, finding.last)]


def test_what_was_lost_and_sent_again_is_repaired_and_not_reordered() -> None:
    planted = Planted({0: [(A, 0), (A, 3), (A, 5), (A, 1), (A, 2), (A, 4)]}, [[(A, 0, 0, 5)]])
    hop = judged(planted, repaired=[(A, 0, 1, 2)])
    assert (hop.counts.repaired, hop.counts.reordered, hop.counts.lost) == (2, 1, 0)
    assert [(each.fault, each.which) for each in hop.findings] == [(Fault.REORDERED, "4")]
    assert judged(planted).counts.reordered == 3


def test_a_late_stretch_that_was_repaired_in_part_counts_only_the_rest() -> None:
    planted = Planted({0: [(A, 0), (A, 5), (A, 1), (A, 2), (A, 3), (A, 4)]}, [[(A, 0, 0, 5)]])
    hop = judged(planted, repaired=[(A, 0, 2, 3)])
    assert (hop.counts.repaired, hop.counts.reordered) == (2, 2)
    assert [(each.which, each.records) for each in hop.findings] == [("1 to 4", 2)]
    assert hop.unnamed_findings == {}


def test_what_was_sealed_clearly_later_than_the_first_record_is_not_known_to_have_expired() -> None:
    """Ten records of retention's; of B, which came hours later, nothing is there."""
    planted = Planted({0: [(A, 4), (A, 5)]}, [[(A, 0, 0, 5)], [(B, 0, 0, 2)]], earliest={0: 10})
    soon, late = TIME_MS + 20_000, TIME_MS + 4 * 3_600_000
    hop = judged(planted, sealed=[(A, 0, 5, soon), (B, 0, 2, soon)])
    assert (hop.counts.expired, hop.counts.lost, hop.doubts) == (7, 0, [])
    hop = judged(planted, sealed=[(A, 0, 5, soon), (B, 0, 0, soon), (B, 0, 2, late)])
    assert (hop.counts.expired, hop.counts.lost) == (7, 0)
    (doubt,) = hop.doubts
    assert doubt.startswith("3 records are missing before the first of orders-0, though some were promised")
    # Late seals of what is there, or of what is behind it, say nothing of what is before it.
    assert not judged(planted, sealed=[(A, 0, 5, late)]).doubts
    # Who read the partition before they were promised knows that they never came.
    hop = judged(planted, sealed=[(B, 0, 0, soon), (B, 0, 2, late)], fresh=[(B, 0, 1, 2)])
    assert (hop.counts.expired, [each.which for each in hop.findings]) == (5, ["1 to 2"])
    # But not if they may have waited for their seal.
    hop = judged(planted, sealed=[(B, 0, 2, soon)], fresh=[(B, 0, 1, 2)])
    assert (hop.counts.expired, hop.counts.lost) == (7, 0)


def test_a_report_of_nothing_is_not_clean() -> None:
    assert Report("orders", "there:9092", 0, []).verdict is Verdict.UNKNOWN
