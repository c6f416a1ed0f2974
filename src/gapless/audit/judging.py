"""The judgement, without Spark: what was promised, what is there, and what that says of each record.

Everything is sets of sequences, one for each stream: a maker (source and incarnation) in a partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gapless.audit.findings import Counts, Fault, Finding, Hop, Timeline
from gapless.audit.sealing import Sealed, nothing_sealed
from gapless.audit.stretches import HIGHEST, Overlay, Stretches, no_stretches, overlay
from gapless.audit.times import NARROWEST_MS
from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, identity_of, sequence_header
from gapless.pipeline.dedup.runs import Flags, Ints, Runs, floor, no_runs

MOST_FINDINGS = 10_000
SEALED_WITHIN_MS = 600_000
"""What is sealed so much later than a record was made came after that record: no seal is that late."""
_NOWHERE = -1


class Streams:
    """Gives each (maker, partition) a key."""

    def __init__(self) -> None:
        self._keys: dict[tuple[bytes, int], int] = {}

    def key(self, maker: bytes, partition: int) -> int:
        return self._keys.setdefault((maker, partition), len(self._keys))

    def known(self) -> list[tuple[bytes, int]]:
        """A stream's place here is its key."""
        return list(self._keys)


class Whole(NamedTuple):
    """A partition as a reader of committed records sees it."""

    earliest: int
    end: int
    """Where such a reader's records end."""
    high: int
    """Where the log ends. Beyond `end` if a transaction is open."""
    records: int = 0
    without_identity: int = 0
    last: int = -1
    """The offset of the last record; -1 if there is none."""
    begins_ms: int = HIGHEST
    """The time of its first record when it was first read, or of reading, if there was none."""

    @property
    def holes(self) -> int:
        """Offsets that hold no record for such a reader."""
        return self.end - self.earliest - self.records


class Slot(NamedTuple):
    """How many records of a maker there were in some time."""

    maker: bytes
    partition: int
    """-1 for all."""
    begins_ms: int
    width_ms: int
    records: int


@dataclass(slots=True)
class Held:
    """What a topic holds."""

    held: Stretches = field(default_factory=no_stretches)
    again: Stretches = field(default_factory=no_stretches)
    late: Stretches = field(default_factory=no_stretches)
    beyond: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By stream: how many more came again, and late, than are named."""
    partitions: dict[int, Whole] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)


@dataclass(slots=True)
class Promised:
    """What the ledger says of a topic."""

    runs: Runs = field(default_factory=no_runs)
    counts: dict[bytes, int] = field(default_factory=dict)
    """By maker: how many records it says were acknowledged, over its whole life."""
    unreadable: int = 0
    slots: list[Slot] = field(default_factory=list)
    repaired: Runs = field(default_factory=no_runs)
    """Lost records that were sent again, and so had to come late."""
    sealed: Sealed = field(default_factory=nothing_sealed)
    timely: Runs = field(default_factory=no_runs)
    """What was promised soon after it was sent, and not only when its producer had come back."""
    fresh: Runs = field(default_factory=no_runs)
    """What of that nobody promised when its partition was read, from where it is known without a hole."""


def judge_topic(
    topic: str,
    streams: Streams,
    promised: Promised,
    there: Held,
    *,
    pending: Runs | None = None,
    compacted: bool = False,
    aborted: Stretches | None = None,
) -> Hop:
    """The hop from producers to a topic. `aborted`: what the log holds in aborted transactions alone."""
    known = streams.known()
    hop = Hop(
        "producers → topic",
        without_identity=sum(each.without_identity for each in there.partitions.values()),
        timeline=timeline(promised.slots, there.slots),
        offsets={each: (whole.earliest, whole.end) for each, whole in sorted(there.partitions.items())},
    )
    aborted = aborted or no_stretches()
    laid = overlay(
        promised.runs,
        there.held.runs,
        pending or no_runs(),
        _spans(promised.runs, there.held),
        aborted.runs,
        promised.fresh,
    )
    is_promised, is_held, is_pending, _, is_aborted, is_fresh = laid.inside
    late = _Late(there.late, promised.repaired)
    is_missing = is_promised & ~is_held
    missing = _Missing(laid.where(is_missing), known, there, promised.sealed)
    missing.judge(is_aborted[is_missing], is_fresh[is_missing], compacted)
    tallies = {
        "promised": _by_stream(laid, is_promised, len(known)),
        "present": _by_stream(laid, is_held, len(known)),
        "unpromised": _by_stream(laid, is_held & ~is_promised, len(known)),
        "pending": _by_stream(laid, is_pending & ~is_promised & ~is_held, len(known)),
        "open": _by_stream(laid, ~(is_promised | is_held | is_pending), len(known)),
        "duplicated": np.bincount(there.again.keys, there.again.sizes, len(known)).astype(np.int64),
        "reordered": late.by_stream(late.records, len(known)),
        "repaired": late.by_stream(late.repaired, len(known)),
        **{name: missing.by_stream(name) for name in ("lost", "torn", "expired", "compacted", "hidden")},
    }
    for key, (more_again, more_late) in there.beyond.items():
        tallies["duplicated"][key] += more_again
        tallies["reordered"][key] += more_late
    names = [name_of(maker) for maker, _ in known]
    for key, (source, _) in enumerate(names):
        counts = hop.sources.setdefault(source, Counts())
        counts += Counts(**{name: int(column[key]) for name, column in tallies.items()})
    findings = [
        *missing.findings(topic, names),
        *_findings(Fault.DUPLICATED, topic, there.again, there.again.sizes, known, names),
        *_findings(Fault.REORDERED, topic, late.stretches, late.records, known, names),
        *_findings(Fault.TORN, topic, aborted, missing.torn_of(aborted), known, names),
    ]
    hop.findings = findings[:MOST_FINDINGS]
    hop.unnamed_findings = unnamed(hop)
    hop.doubts = _doubts(topic, hop, promised, _unsealed(promised, tallies, known))
    hop.doubts += [*missing.too_old(topic), *missing.too_young(topic), *missing.not_proven(topic)]
    return hop


def name_of(maker: bytes) -> tuple[str, str]:
    """Source and incarnation, the latter in hexadecimal."""
    found = identity_of([(SOURCE_HEADER, maker), (SEQUENCE_HEADER, sequence_header(0))])
    if found is None:  # nobody reads those into a stream
        raise ValueError(f"no maker: {maker!r}")
    return found.source, found.incarnation.hex()


def timeline(promised: Sequence[Slot], present: Sequence[Slot]) -> Timeline:
    """Both by source, in slots as wide as the widest."""
    told = Timeline(max((slot.width_ms for slot in (*promised, *present)), default=NARROWEST_MS))
    for slots, by_source in ((promised, told.promised), (present, told.present)):
        for slot in slots:
            source, _ = name_of(slot.maker)
            begins_ms = slot.begins_ms // told.width_ms * told.width_ms
            of_source = by_source.setdefault(source, {})
            of_source[begins_ms] = of_source.get(begins_ms, 0) + slot.records
    return told


class _Missing:
    """What was promised and is not there: where it would be, and why it may not be."""

    def __init__(self, runs: Runs, known: list[tuple[bytes, int]], there: Held, sealed: Sealed) -> None:
        self._runs = runs
        self._known = known
        self._partitions = there.partitions
        held = there.held
        partitions = np.array([partition for _, partition in known], np.int64)[runs.keys]
        self._wholes = [there.partitions.get(each, Whole(0, 0, 0)) for each in partitions.tolist()]
        before = floor(held.runs, runs.keys, runs.firsts)
        after = np.where(before >= 0, before + 1, np.searchsorted(held.keys, runs.keys, "left"))
        self._has_before = before >= 0
        self._has_after = _has_key(held.keys, after, runs.keys)
        before, after = np.where(self._has_before, before, 0), np.where(self._has_after, after, 0)
        self._before = [_pick(column, before, self._has_before) for column in held.ends]
        self._after = [_pick(column, after, self._has_after) for column in held.begins]
        begins_ms = np.array([each.begins_ms for each in self._wholes], np.int64)
        self._is_young = sealed.latest_ms(runs.keys, runs.lasts) > begins_ms + SEALED_WITHIN_MS

    def judge(self, is_aborted: Flags, is_fresh: Flags, compacted: bool) -> None:
        """Why each is missing. What is `fresh` was promised after its partition was read."""
        facts = np.array([each[:4] for each in self._wholes], np.int64).reshape(len(self._wholes), 4)
        earliest, end, high, records = facts.T
        low = np.where(self._has_before, self._before[0], earliest - 1)
        top = np.where(self._has_after, self._after[0], end)
        low_row = np.where(self._has_before, self._before[2], -1)
        top_row = np.where(self._has_after, self._after[2], records)
        sizes = self._runs.lasts - self._runs.firsts + 1
        expired = ~self._has_before & (earliest > 0) & ~(is_fresh & self._is_young)
        hidden = ~expired & ~self._has_after & (high > end)
        torn = ~expired & ~hidden & is_aborted
        rest = ~expired & ~hidden & ~torn
        # Offsets between the neighbours that hold no record: as many may have been removed by compaction.
        # Where order is broken, too, nobody can say.
        holes = np.where(top > low, (top - low) - (top_row - low_row), sizes)
        gone = np.clip(holes, 0, sizes) if compacted else np.zeros(len(sizes), np.int64)
        self._counts = {
            "expired": np.where(expired, sizes, 0),
            "young": np.where(expired & self._is_young, sizes, 0),
            "hidden": np.where(hidden, sizes, 0),
            "torn": np.where(torn, sizes, 0),
            "compacted": np.where(rest, gone, 0),
            "lost": np.where(rest, sizes - gone, 0),
        }

    def by_stream(self, name: str) -> Ints:
        return np.bincount(self._runs.keys, self._counts[name], len(self._known)).astype(np.int64)

    def too_old(self, topic: str) -> list[str]:
        """Partitions of which more records should have expired than there were offsets before the first."""
        return [
            f"{count:,} records are missing before the first of {topic}-{partition}, and retention can have "
            f"taken {whole.earliest:,} at most"
            for partition, whole, count in self._by_partition("expired")
            if count > whole.earliest
        ]

    def too_young(self, topic: str) -> list[str]:
        """Partitions of which records should have expired that were promised later than older ones are."""
        return [
            f"{count:,} records are missing before the first of {topic}-{partition}, though some were "
            "promised clearly later than its first record was made: retention takes what is oldest, so they "
            "may be lost"
            for partition, _, count in self._by_partition("young")
        ]

    def not_proven(self, topic: str) -> list[str]:
        """Partitions of which compaction may have taken less: the ends of transactions hold no record, too.

        It has taken all if there are as many holes as missing records, and the last offset holds one: a
        transaction's end would be there, and compaction never takes what is last.
        """
        return [
            f"{count:,} records are missing in {topic}-{partition}, and {whole.holes:,} offsets hold none: "
            "some may be the ends of transactions, so nobody can tell whether compaction has taken them all"
            for partition, whole, count in self._by_partition("compacted")
            if count != whole.holes or whole.last < whole.end - 1
        ]

    def _by_partition(self, name: str) -> list[tuple[int, Whole, int]]:
        """Partitions with such records, and how many."""
        sums = Counter[int]()
        for key, count in zip(self._runs.keys.tolist(), self._counts[name].tolist(), strict=True):
            sums[self._known[key][1]] += count
        return [
            (each, self._partitions.get(each, Whole(0, 0, 0)), n) for each, n in sorted(sums.items()) if n
        ]

    def torn_of(self, aborted: Stretches) -> Ints:
        """How many of each of these stretches are torn. A run never goes beyond one of them."""
        records = np.zeros(len(aborted.keys), np.int64)
        torn = self._counts["torn"]
        at = np.flatnonzero(torn)
        place = floor(aborted.runs, self._runs.keys[at], self._runs.firsts[at])
        np.add.at(records, place, torn[at])
        return records

    def findings(self, topic: str, names: list[tuple[str, str]]) -> list[Finding]:
        lost = self._counts["lost"]
        found = []
        for at in np.flatnonzero(lost)[:MOST_FINDINGS].tolist():
            key = int(self._runs.keys[at])
            found.append(
                Finding(
                    Fault.LOST,
                    *names[key],
                    topic,
                    self._known[key][1],
                    int(self._runs.firsts[at]),
                    int(self._runs.lasts[at]),
                    int(lost[at]),
                    _or_none(self._before[0], self._has_before, at),
                    _or_none(self._after[0], self._has_after, at),
                    _or_none(self._before[1], self._has_before, at),
                    _or_none(self._after[1], self._has_after, at),
                )
            )
        return found


class _Late:
    """Stretches that came after later ones, and how many records of each were late because of a repair."""

    def __init__(self, late: Stretches, repaired: Runs) -> None:
        # No sequence is late twice, so they are disjoint, and each part of the overlay lies in one of them.
        self.stretches = late.at(np.lexsort((late.firsts, late.keys)))
        laid = overlay(late.runs, repaired)
        both = laid.where(laid.inside[0] & laid.inside[1])
        self.repaired = np.zeros(len(late.keys), np.int64)
        place = floor(self.stretches.runs, both.keys, both.firsts)
        np.add.at(self.repaired, place, both.lasts - both.firsts + 1)
        self.records = self.stretches.sizes - self.repaired

    def by_stream(self, counts: Ints, streams: int) -> Ints:
        return np.bincount(self.stretches.keys, counts, streams).astype(np.int64)


def _findings(
    fault: Fault,
    topic: str,
    found: Stretches,
    records: Ints,
    known: list[tuple[bytes, int]],
    names: list[tuple[str, str]],
) -> list[Finding]:
    columns = (found.keys, found.firsts, found.lasts, *found.begins[:2], *found.ends[:2], records)
    faulty = np.flatnonzero(records)[:MOST_FINDINGS]
    rows = zip(*(column[faulty].tolist() for column in columns), strict=True)
    return [
        Finding(
            fault,
            names[key][0],
            names[key][1],
            topic,
            known[key][1],
            first,
            last,
            count,
            first_offset,
            last_offset,
            first_ms,
            last_ms,
        )
        for key, first, last, first_offset, first_ms, last_offset, last_ms, count in rows
    ]


def _spans(promised: Runs, held: Stretches) -> Runs:
    """From 0 to the highest sequence that is known of each stream."""
    keys = np.concatenate([promised.keys, held.keys])
    lasts = np.concatenate([promised.lasts, held.lasts])
    return Runs(keys, np.zeros(len(keys), np.int64), lasts)


def _by_stream(laid: Overlay, flags: Flags, streams: int) -> Ints:
    runs = laid.where(flags)
    return np.bincount(runs.keys, runs.lasts - runs.firsts + 1, streams).astype(np.int64)


def _has_key(keys: Ints, at: Ints, wanted: Ints) -> Flags:
    inside = at < len(keys)
    found = np.zeros(len(at), np.bool_)
    found[inside] = keys[at[inside]] == wanted[inside]
    return found


def _pick(column: Ints, at: Ints, flags: Flags) -> Ints:
    picked = np.full(len(at), _NOWHERE, np.int64)
    picked[flags] = column[at[flags]]
    return picked


def _or_none(column: Ints, flags: Flags, at: int) -> int | None:
    return int(column[at]) if flags[at] else None


def unnamed(hop: Hop) -> dict[Fault, int]:
    """Records with a fault that no finding names."""
    named = dict.fromkeys(Fault, 0)
    for finding in hop.findings:
        named[finding.fault] += finding.records
    counts = hop.counts
    rest = {fault: getattr(counts, fault.value) - named[fault] for fault in Fault}
    return {fault: count for fault, count in rest.items() if count}


def _unsealed(promised: Promised, tallies: Mapping[str, Ints], known: list[tuple[bytes, int]]) -> int:
    """Records that makers count, and that are missing without a seal that tells of them.

    Some may be in gaps, though what is there without a promise could be what was counted. All that is
    counted beyond what is there or promised is missing for certain, and nothing tells where.
    """
    told, spare, gaps = (Counter[bytes]() for _ in range(3))
    for key, (maker, _) in enumerate(known):
        told[maker] += int(tallies["promised"][key])
        spare[maker] += int(tallies["unpromised"][key])
        gaps[maker] += int(tallies["open"][key])
    untold = {maker: counted - told[maker] for maker, counted in promised.counts.items()}
    return sum(max(min(gaps[maker], count), count - spare[maker], 0) for maker, count in untold.items())


def _doubts(topic: str, hop: Hop, promised: Promised, unsealed: int) -> list[str]:
    counts = hop.counts
    doubts = []
    if promised.unreadable:
        doubts.append(f"{promised.unreadable:,} records of the ledger cannot be read as seals")
    if not counts.promised:
        foreign = ": see --foreign, for records without an identity" if hop.without_identity else ""
        doubts.append(f"no seal of the ledger promises a record of {topic}{foreign}")
    elif counts.promised == counts.expired:
        doubts.append(f"retention has taken all that was promised of {topic}")
    if counts.hidden:
        doubts.append(
            f"{counts.hidden:,} promised records may be behind a transaction that has not ended: "
            "audit again when it has"
        )
    if unsealed:
        doubts.append(
            f"{unsealed:,} records are missing, of producers whose seals tell of fewer than they count"
        )
    return doubts
