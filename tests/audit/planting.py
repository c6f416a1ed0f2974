"""Topics with faults that were put there on purpose, and what an audit has to say of each.

    planted = plant(Random(7))
    planted.logs            # partition: records, in order
    planted.promises        # what seals tell
    planted.expected        # fault: {(maker, partition, sequence): times}

A clean topic is made first: several sources, each numbering its records in each partition, and seals for all.
Then edits, each of which changes the log or the seals, and what is expected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from gapless.audit import Fault
from gapless.client.formats import source_header

Name = tuple[bytes, int, int]
"""Maker, partition, sequence."""
Record = tuple[bytes, int]
"""Maker and sequence; the partition is where it is."""
Interval = tuple[bytes, int, int, int]
"""Maker, partition, first and last sequence."""


@dataclass
class Planted:
    logs: dict[int, list[Record]]
    seals: list[list[Interval]]
    """In the order of the ledger. A seal promises intervals of one maker."""
    edits: list[str] = field(default_factory=list)
    earliest: dict[int, int] = field(default_factory=dict)
    """Offsets below these were removed by retention; a log's first record is there."""
    aborted: dict[int, list[Record]] = field(default_factory=dict)
    """Records that are in the log, too, behind all others, in a transaction that was aborted."""

    @property
    def promised(self) -> set[Name]:
        return {
            (maker, partition, sequence)
            for seal in self.seals
            for maker, partition, first, last in seal
            for sequence in range(first, last + 1)
        }

    @property
    def expired(self) -> set[Name]:
        """What is missing before the first of its source that is left, where retention took something: nobody
        can tell it from what is lost there, if the seals are as old."""
        held = {(maker, each): n for each, log in self.logs.items() for maker, n in sorted(log, reverse=True)}
        return {
            (maker, partition, sequence)
            for maker, partition, sequence in self.promised
            if self.earliest.get(partition, 0) > 0 and sequence < held.get((maker, partition), sequence + 1)
        }

    @property
    def expected(self) -> dict[Fault, Counter[Name]]:
        """By looking at one record after the other."""
        found: dict[Fault, Counter[Name]] = {fault: Counter() for fault in Fault}
        there: set[Name] = set()
        for partition, log in self.logs.items():
            highest: dict[bytes, int] = {}
            for maker, sequence in log:
                name = (maker, partition, sequence)
                if name in there:
                    found[Fault.DUPLICATED][name] += 1
                elif sequence < highest.get(maker, -1):
                    found[Fault.REORDERED][name] += 1
                there.add(name)
                highest[maker] = max(sequence, highest.get(maker, -1))
        for name in self.promised - there - self.expired:
            maker, partition, sequence = name
            is_torn = (maker, sequence) in self.aborted.get(partition, ())
            found[Fault.TORN if is_torn else Fault.LOST][name] += 1
        return found

    @property
    def unpromised(self) -> int:
        there = {(maker, partition, each) for partition, log in self.logs.items() for maker, each in log}
        return len(there - self.promised)


def clean(random: Random, sources: int, partitions: int, records: int) -> Planted:
    """What sources send in turn, and the seals that they write meanwhile."""
    makers = [source_header(f"source-{number:03}", random.randbytes(8)) for number in range(sources)]
    planted = Planted({partition: [] for partition in range(partitions)}, [])
    following: Counter[tuple[bytes, int]] = Counter()
    sealed: Counter[tuple[bytes, int]] = Counter()

    def seal(maker: bytes) -> None:
        news = [
            (maker, partition, sealed[maker, partition], following[maker, partition] - 1)
            for partition in range(partitions)
            if sealed[maker, partition] < following[maker, partition]
        ]
        if news:
            planted.seals.append(news)
        for _, partition, _, last in news:
            sealed[maker, partition] = last + 1

    for _ in range(records):
        maker, partition = random.choice(makers), random.randrange(partitions)
        planted.logs[partition].append((maker, following[maker, partition]))
        following[maker, partition] += 1
        if random.random() < 0.05:
            seal(maker)
    for maker in makers:
        seal(maker)
    return planted


def plant(planted: Planted, random: Random, edits: int, kinds: Iterable[str] | None = None) -> Planted:
    """The same with random edits."""
    names = list(kinds or EDITS)
    for _ in range(edits):
        name = random.choice(names)
        EDITS[name](planted, random)
        planted.edits.append(name)
    return planted


def _drop(planted: Planted, random: Random) -> None:
    log = planted.logs[random.choice(list(planted.logs))]
    if log:
        at = random.randrange(len(log))
        del log[at : at + random.choice([1, 1, 1, 5])]


def _repeat(planted: Planted, random: Random) -> None:
    """A part of the log comes again, later."""
    log = planted.logs[random.choice(list(planted.logs))]
    if log:
        at = random.randrange(len(log))
        part = log[at : at + random.choice([1, 1, 10])]
        to = random.randrange(at + len(part), len(log) + 1)
        log[to:to] = part


def _swap(planted: Planted, random: Random) -> None:
    log = planted.logs[random.choice(list(planted.logs))]
    if len(log) > 1:
        one, other = random.randrange(len(log)), random.randrange(len(log))
        log[one], log[other] = log[other], log[one]


def _tear(planted: Planted, random: Random) -> None:
    """What one seal promises is there in one partition, and in the others not."""
    _tear_off(planted, random.choice(planted.seals)[1:] if planted.seals else [])


def _tear_off(planted: Planted, intervals: Iterable[Interval]) -> None:
    for maker, partition, first, last in intervals:
        gone = {(maker, sequence) for sequence in range(first, last + 1)}
        planted.logs[partition] = [each for each in planted.logs[partition] if each not in gone]


def _abort(planted: Planted, random: Random) -> None:
    """What one seal promises ended as it should in one partition, and in the others was aborted."""
    seal = random.choice(planted.seals) if planted.seals else []
    _tear_off(planted, seal[1:])
    for maker, partition, first, last in seal[1:]:
        records = [(maker, sequence) for sequence in range(first, last + 1)]
        planted.aborted[partition] = [*planted.aborted.get(partition, []), *records]


def _abort_and_repeat(planted: Planted, random: Random) -> None:
    """An attempt that was aborted, of what is there. No fault at all."""
    partition = random.choice(list(planted.logs))
    log = planted.logs[partition]
    if log:
        at = random.randrange(len(log))
        planted.aborted[partition] = [*planted.aborted.get(partition, []), *log[at : at + 5]]


def _truncate(planted: Planted, random: Random) -> None:
    log = planted.logs[random.choice(list(planted.logs))]
    del log[max(len(log) - random.randrange(1, 20), 0) :]


def _drop_source(planted: Planted, random: Random) -> None:
    makers = sorted({maker for log in planted.logs.values() for maker, _ in log})
    if len(makers) > 1:
        maker = random.choice(makers)
        for partition, log in planted.logs.items():
            planted.logs[partition] = [each for each in log if each[0] != maker]


def _drop_last_seal(planted: Planted, random: Random) -> None:
    if len(planted.seals) > 1:
        maker = random.choice(planted.seals)[0][0]
        at = max(at for at, seal in enumerate(planted.seals) if seal[0][0] == maker)
        del planted.seals[at]


def _seal_again(planted: Planted, random: Random) -> None:
    """As after a restart: a seal for all that was promised before. No fault at all."""
    if planted.seals:
        at = random.randrange(len(planted.seals))
        maker = planted.seals[at][0][0]
        lasts: dict[int, int] = {}
        for seal in planted.seals[: at + 1]:
            for who, partition, _, last in seal:
                if who == maker:
                    lasts[partition] = max(last, lasts.get(partition, -1))
        promised = planted.promised
        whole = all((maker, each, n) in promised for each, last in lasts.items() for n in range(last + 1))
        if whole:
            planted.seals.insert(at + 1, [(maker, each, 0, last) for each, last in sorted(lasts.items())])


def _expire(planted: Planted, random: Random) -> None:
    """Retention takes the beginning of a log. No fault at all."""
    partition = random.choice(list(planted.logs))
    log = planted.logs[partition]
    count = random.randrange(1, 20)
    if count < len(log):
        del log[:count]
        planted.earliest[partition] = planted.earliest.get(partition, 0) + count


EDITS: dict[str, Callable[[Planted, Random], None]] = {
    "drop": _drop,
    "repeat": _repeat,
    "swap": _swap,
    "tear": _tear,
    "abort": _abort,
    "abort and repeat": _abort_and_repeat,
    "truncate": _truncate,
    "drop source": _drop_source,
    "drop last seal": _drop_last_seal,
    "seal again": _seal_again,
    "expire": _expire,
}
HARMLESS = ("abort and repeat", "expire", "seal again", "drop last seal")
"""Edits after which a topic is as clean as before."""
