"""A run as a story that a person can follow: who did what and when, one line each.

Which lines matter is known only at the end, when the broken promise has named a partition and its records.
Those are told first; of the rest, as much as fits on a screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gapless.core.coordinators import CONSUMER_OFFSETS, TRANSACTION_STATE
from gapless.simulator.case import Case
from gapless.simulator.checkers import CHECKERS, Violation
from gapless.simulator.history import Place
from gapless.simulator.noting import SAYS, Kind, Line, Notes, places_in
from gapless.simulator.run import CONTRADICTION, CRASH, Report, play

MAX_LINES = 30

JEPSEN = {
    "lost-write": "a lost write: what was acknowledged is nowhere to be found",
    "duplicate": "a duplicate: one record, sent once by its application, is there twice",
    "unseen": "an unseen write: it was acknowledged, and polling never shows it",
    "inconsistent-offsets": "inconsistent offsets: one offset, and two records that were seen there",
    "G1a": "G1a, an aborted read: somebody saw what was taken back",
    "torn-transaction": "a torn transaction: a part of it is visible, the rest is not",
    "nonmonotonic-poll": "a nonmonotonic poll: reading went back without having been asked to",
    "nonmonotonic-send": "a nonmonotonic send: the log has another order than its producer",
    "poll-skip": "a poll skip: reading passed over records that were there",
}
"""What Jepsen's analyses of logs call an anomaly, and what that means."""
NOT_JEPSENS = {
    CONTRADICTION: "the rules contradicted themselves, and a broker would have stopped",
    CRASH: "a rule could not go on, and a broker would have stopped",
    "stuck": "nothing is wrong with what was read, but somebody waits for ever",
}
INSIDE = "it was seen inside the brokers, before a client could be harmed"


def _is_inside(anomaly: str) -> bool:
    """Whether a promise is about what clients cannot see."""
    return anomaly in CHECKERS and CHECKERS[anomaly].looks_inside()


@dataclass(frozen=True, slots=True)
class Story:
    """A run, told."""

    stage: list[str]
    """What there was from the beginning."""
    lines: list[Line]
    left_out: int
    ending: list[str]
    """What was broken, what it is called, and what had been promised."""


def tell(case: Case, *, whole: bool = False) -> tuple[Story, Report]:
    """Play a case and tell what happened; `whole`: all that was noted, however long."""
    notes = Notes()
    report = play(case, notes)
    matter = notes.lines if whole else list(_that_matter(notes.lines, case, report.violation))
    shown = matter if whole else _that_fit(matter)
    ending = [*_ending(report.violation), *_what_came_of_it(case, report.violation)]
    return Story(list(_stage(case, shown)), shown, len(matter) - len(shown), ending), report


def _stage(case: Case, lines: list[Line]) -> Iterator[str]:
    """The cluster, and those clients who play a part."""
    acting = {line.who for line in lines}
    yield f"{case.brokers} brokers"
    for topic in case.topics:
        partitions = "1 partition" if topic.partitions == 1 else f"{topic.partitions} partitions"
        replicas = "1 replica" if topic.replicas == 1 else f"{topic.replicas} replicas"
        settings = "".join(f", {key}={value}" for key, value in topic.configs.items())
        yield f"topic {topic.name}: {partitions}, {replicas}{settings}"
    for client in (each for each in case.clients if each.name in acting):
        options = "".join(f", {key}={value}" for key, value in client.options.items())
        yield f"{client.name}: {client.kind}{options}"


def _ending(violation: Violation | None) -> Iterator[str]:
    if violation is None:
        yield "Every promise was kept."
        return
    anomaly = violation.anomaly
    yield f"{anomaly}: {violation.text}"
    if anomaly in JEPSEN:
        yield f"Jepsen calls it {JEPSEN[anomaly]}."
    elif anomaly in NOT_JEPSENS or _is_inside(anomaly):
        yield f"Jepsen has no name for it: {NOT_JEPSENS.get(anomaly, INSIDE)}."
    else:
        yield "Jepsen has no name for it."
    if anomaly in CHECKERS:
        yield f"The promise was: {CHECKERS[anomaly].meaning}."


def _what_came_of_it(case: Case, violation: Violation | None) -> Iterator[str]:
    """What clients suffer from what was seen inside the brokers, if the run goes on."""
    if violation is None or not _is_inside(violation.anomaly):
        return
    harm = play(replace(case, harm_only=True)).violation
    if harm is None:
        yield "If the run goes on, all is well in the end: nobody happens to need what is wrong."
        return
    yield f"If the run goes on, clients see it as {harm.anomaly}: {harm.text}"
    if harm.anomaly in JEPSEN:
        yield f"Jepsen calls that {JEPSEN[harm.anomaly]}."


def _that_matter(lines: list[Line], case: Case, violation: Violation | None) -> Iterator[Line]:
    """Faults, and what happened to the records of the violation and to their partitions."""
    records = set(() if violation is None else violation.records)
    places = _places(lines, case, violation)
    for line in lines:
        if line.text.startswith(SAYS):
            continue  # what it is about has a line of its own
        if line.kind is Kind.WATERMARK and violation is not None and not _is_inside(violation.anomaly):
            continue  # clients do not see it
        if records.intersection(line.records) and line.kind in (Kind.LOSS, Kind.CLIENT, Kind.COPY):
            line.kind = Kind.RECORD
        if line.kind is Kind.FAULT or not line.places or places.intersection(line.places):
            yield line


def _places(lines: list[Line], case: Case, violation: Violation | None) -> set[Place]:
    """The partitions that a story is about: those of the violation, and of the coordinators in play."""
    named = (
        set() if violation is None else set(places_in(violation.text, [each.name for each in case.topics]))
    )
    if violation is None or not (named or violation.place or violation.records):
        return {place for line in lines for place in line.places}
    about = {
        place for line in lines if set(violation.records).intersection(line.records) for place in line.places
    }
    kinds = {client.kind for client in case.clients}
    transactions = {(TRANSACTION_STATE, 0)} if kinds & {"transactional", "relay"} else set()
    groups = {(CONSUMER_OFFSETS, 0)} if kinds & {"member", "relay"} else set()
    at = set() if violation.place is None else {violation.place}
    return about | named | at | transactions | groups


def _that_fit(lines: list[Line]) -> list[Line]:
    """As many as fit on a screen: what says least is left out, and of that what is oldest."""
    excess = len(lines) - MAX_LINES
    for kind in sorted(Kind, reverse=True):
        if excess > 0 and kind is not Kind.FAULT:
            going = [line for line in lines if line.kind is kind][:excess]
            lines = [line for line in lines if line not in going]
            excess -= len(going)
    return lines
