"""What an audit says: findings that name records, a line for each source, and a verdict.

Plain data without Spark or arrays: reports, the command line and scripts read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self


class Fault(StrEnum):
    """What can be wrong with records. Each is a reason for exit code 1."""

    LOST = "lost"
    """Acknowledged, and not there."""
    DUPLICATED = "duplicated"
    """One identity in several places."""
    REORDERED = "reordered"
    """Behind a record that was made later."""
    ABORTED = "aborted"
    """In a sink, though readers of committed records do not find it in the topic."""
    TORN = "torn"
    """Acknowledged, and in the log only as a part of a transaction that was aborted there."""


class Verdict(StrEnum):
    """The answer to: did everything arrive, once?"""

    CLEAN = "clean"
    FINDINGS = "findings"
    UNKNOWN = "could not tell"

    @property
    def exit_code(self) -> int:
        return {"clean": 0, "findings": 1}.get(self.value, 2)


@dataclass(frozen=True, slots=True)
class Finding:
    """Records of one source in one partition with one fault: sequences `first` to `last`, -1 if not known.

    Records that a topic has lost would be behind `first_offset` and before `last_offset`, and so with times;
    others are there. In a sink, all offsets and times are those of the records in the topic.
    """

    fault: Fault
    source: str
    incarnation: str
    topic: str
    partition: int
    first: int
    last: int
    records: int
    """How many of them: not all, where compaction may have removed others, or others were repaired."""
    first_offset: int | None
    last_offset: int | None
    first_ms: int | None
    last_ms: int | None
    in_sink: bool = False

    @property
    def place(self) -> str:
        """-1 is a partition that nobody can tell."""
        return f"{self.topic}-{self.partition}" if self.partition >= 0 else self.topic

    @property
    def which(self) -> str:
        if self.first < 0:
            return ""
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"

    @property
    def amount(self) -> str:
        """How many, where the sequences do not say it."""
        if self.first >= 0 and self.records == self.last - self.first + 1:
            return ""
        one, several = ("copy", "copies") if self.fault is Fault.DUPLICATED else ("record", "records")
        return f"{self.records:,} {one if self.records == 1 else several}"

    def __str__(self) -> str:
        offsets = _offsets(self.first_offset, self.last_offset)
        where = {
            Fault.LOST: _between(self.first_offset, self.last_offset),
            Fault.DUPLICATED: f"again at {offsets}",
            Fault.REORDERED: f"late at {offsets}",
            Fault.TORN: f"aborted at {offsets}",
        }.get(self.fault, f"of {offsets}")
        if self.in_sink:
            where = f"of {offsets}" if self.first_offset is not None else ""
        name = f"{self.source} ({self.incarnation[:8]})" if self.incarnation else self.source
        what = " ".join(filter(None, (name, self.place, self.which)))
        said = ", ".join(filter(None, (what, self.amount, where)))
        return f"{self.fault}: {said}{_time(self.first_ms)}"


def _offsets(first: int | None, last: int | None) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def _between(first: int | None, last: int | None) -> str:
    if first is None and last is None:
        return "with nothing else of it there"
    if first is None:
        return f"before offset {last}"
    return f"after offset {first}" if last is None else f"between offsets {first} and {last}"


def _time(ms: int | None) -> str:
    if ms is None or not 0 <= ms < 253_402_300_800_000:
        return ""
    return f", {datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(slots=True)
class Counts:
    """Records by what is true of them."""

    promised: int = 0
    present: int = 0
    """Different records that are there."""
    lost: int = 0
    duplicated: int = 0
    """Copies beyond the first."""
    reordered: int = 0
    aborted: int = 0
    """In a sink, though readers of committed records do not see it in the topic."""
    torn: int = 0
    """Acknowledged as committed, and aborted where they are: no reader of committed records sees them."""
    repaired: int = 0
    """Late, since they were lost and sent again."""
    unpromised: int = 0
    """There, though no seal tells that they were acknowledged: allowed."""
    pending: int = 0
    """In a spool, and not in the topic yet."""
    expired: int = 0
    """Promised, and older than what retention has left."""
    compacted: int = 0
    """Promised, and gone where compaction has removed as many."""
    hidden: int = 0
    """Promised, and behind a transaction that has not ended: readers will see whether they are there."""
    open: int = 0
    """Neither there nor promised, between others that are: they may still be sent, or sealed."""

    @property
    def faults(self) -> int:
        return self.lost + self.duplicated + self.reordered + self.aborted + self.torn

    @property
    def promised_there(self) -> int:
        """Where nothing is lost: the promised records that are there. In a sink some may be pending."""
        return min(self.promised - self.expired - self.compacted, self.present)

    def __iadd__(self, other: Counts) -> Self:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self


def total(counts: Iterable[Counts]) -> Counts:
    sum_ = Counts()
    for each in counts:
        sum_ += each
    return sum_


@dataclass(slots=True)
class Timeline:
    """Records by source and time, in slots of one width: what was promised when, what is there from when.

    Empty where a comparison does not count by time.
    """

    width_ms: int = 1000
    promised: dict[str, dict[int, int]] = field(default_factory=dict)
    """By source and beginning of the slot, in ms: the time is that of the seal, if seals promise."""
    present: dict[str, dict[int, int]] = field(default_factory=dict)
    """The time is the record's own; copies count, too."""
    is_sealed: bool = True
    """Else what is promised is what is in a topic, by the records' own time."""


@dataclass(slots=True)
class Hop:
    """One step on the way of records, judged."""

    name: str
    sources: dict[str, Counts] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unnamed_findings: dict[Fault, int] = field(default_factory=dict)
    """Records with a fault beyond those that are named."""
    without_identity: int = 0
    doubts: list[str] = field(default_factory=list)
    """Why it cannot be called clean, though nothing was found."""
    notes: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition: its first offset, and the end of what was read."""

    @property
    def counts(self) -> Counts:
        return total(self.sources.values())


@dataclass(slots=True)
class Report:
    """The whole answer."""

    topic: str
    bootstrap: str
    at_ms: int
    hops: list[Hop]
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        if any(hop.counts.faults for hop in self.hops):
            return Verdict.FINDINGS
        is_known = self.hops and not any(hop.doubts for hop in self.hops)
        return Verdict.CLEAN if is_known else Verdict.UNKNOWN

    def as_json(self) -> Mapping[str, Any]:
        return {
            "verdict": self.verdict.value,
            "topic": self.topic,
            "bootstrap": self.bootstrap,
            "at_ms": self.at_ms,
            "seconds": round(self.seconds, 3),
            "hops": [
                {
                    "hop": hop.name,
                    "counts": asdict(hop.counts),
                    "without_identity": hop.without_identity,
                    "doubts": hop.doubts,
                    "notes": hop.notes,
                    "sources": {source: asdict(counts) for source, counts in sorted(hop.sources.items())},
                    "findings": [asdict(finding) for finding in hop.findings],
                    "unnamed_findings": {fault.value: n for fault, n in hop.unnamed_findings.items()},
                }
                for hop in self.hops
            ],
        }
