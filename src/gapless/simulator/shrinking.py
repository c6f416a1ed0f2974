"""From a case that fails to a short one that fails in the same way.

First whole chunks of steps are left out, then single ones; then clients, topics, partitions and brokers; then
what is left is made simpler: no jitter, one record instead of five, brokers by number, round and short times.
Whatever still breaks the same promise is kept. All of it is tried in a fixed order, and only the number of
runs is bounded: the same case shrinks to the same case, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gapless.simulator.arguments import brokers_of, durations_of, named, with_argument
from gapless.simulator.case import Case, Step, TopicPlan
from gapless.simulator.checkers import Violation
from gapless.simulator.run import CRASH, play

MAX_RUNS = 800
FEWEST_BROKERS = 3
ROUND_MS = (0, 10, 50, 100, 200, 500, 1_000, 2_000)
OTHER_SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The shortest case that was found, and how it fails."""

    case: Case
    violation: Violation
    runs: int


class Enough(Exception):
    """The budget is spent."""


def shrink(
    case: Case,
    violation: Violation,
    *,
    max_runs: int = MAX_RUNS,
    on_progress: Callable[[int, Case], object] = lambda runs, case: None,
) -> Shrunk:
    """Shrink a case that breaks a promise."""
    shrinker = Shrinker(case, violation, max_runs, on_progress)
    shrinker.shrink()
    return Shrunk(shrinker.case, shrinker.violation, shrinker.runs)


class Shrinker:
    """Tries one simpler case after another, from the simplest that has failed so far."""

    def __init__(
        self, case: Case, violation: Violation, max_runs: int, on_progress: Callable[[int, Case], object]
    ) -> None:
        self.case = case
        self.violation = violation
        self.runs = 0
        self._max_runs = max_runs
        self._on_progress = on_progress
        self._tried: dict[str, None] = {}
        self._failed_ms: int | None = None

    def shrink(self) -> None:
        """Go on until nothing helps any more."""
        passes = (
            self._end_earlier,
            self._without_jitter,
            self._fewer_steps,
            self._fewer_of_everything,
            self._smaller_steps,
            self._numbers_for_roles,
            self._shorter_times,
        )
        try:
            before = None
            while before != self.case:
                before = self.case
                for each in passes:
                    each()
        except Enough:
            pass

    def attempt(self, candidate: Case) -> bool:
        """Whether a simpler case fails, too; then it is the one to go on from."""
        key = repr(candidate)
        if key in self._tried:
            return False
        if self.runs >= self._max_runs:
            raise Enough
        self._tried[key] = None
        self.runs += 1
        report = play(candidate)
        if report.violation is None or _kind(report.violation) != _kind(self.violation):
            return False
        self.case, self.violation, self._failed_ms = candidate, report.violation, report.failed_ms
        self._on_progress(self.runs, self.case)
        return True

    # ------------------------------------------------------------------------------------------ steps

    def _end_earlier(self) -> None:
        """What comes after the failure has no part in it."""
        if self._failed_ms is None:
            self.attempt(self.case)
        failed_ms = self._failed_ms
        if failed_ms is not None and self.case.steps and self.case.steps[-1].at_ms > failed_ms:
            self.attempt(
                self.case.with_steps(tuple(step for step in self.case.steps if step.at_ms <= failed_ms))
            )

    def _without_jitter(self) -> None:
        """Where every message takes the same time, a step that is left out changes nothing else."""
        if self.case.jitter:
            seeds = (self.case.seed, *OTHER_SEEDS)
            any(self.attempt(replace(self.case, jitter=False, seed=seed)) for seed in seeds)

    def _fewer_steps(self) -> None:
        size = max(1, len(self.case.steps) // 2)
        while size:
            before = len(self.case.steps)
            while before > 0:
                first = max(0, before - size)
                steps = self.case.steps
                self.attempt(self.case.with_steps(steps[:first] + steps[before:]))
                before = first
            size //= 2

    # ------------------------------------------------------------------------------------- the cluster

    def _fewer_of_everything(self) -> None:
        for client in self.case.clients:
            self.attempt(_without_client(self.case, client.name))
        for topic in self.case.topics[::-1]:
            is_used = any(topic.name in client.options.values() for client in self.case.clients)
            if len(self.case.topics) > 1 and not is_used:
                self.attempt(_without_topic(self.case, topic.name))
        for topic in self.case.topics:
            for simpler in _simpler_topics(topic):
                if self.attempt(_with_topic(self.case, simpler)):
                    break
        while self.case.brokers > FEWEST_BROKERS and self.attempt(_with_a_broker_less(self.case)):
            pass
        if self.case.settings:
            self.attempt(replace(self.case, settings={}))

    # --------------------------------------------------------------------------------------- each step

    def _with_step(self, at: int, step: Step) -> bool:
        steps = self.case.steps
        return self.attempt(self.case.with_steps((*steps[:at], step, *steps[at + 1 :])))

    def _smaller_steps(self) -> None:
        for at in range(len(self.case.steps)):
            for smaller in _smaller(self.case.steps[at]):
                if self._with_step(at, smaller):
                    break

    def _numbers_for_roles(self) -> None:
        for at in range(len(self.case.steps)):
            for name, who in brokers_of(self.case.steps[at]).items():
                if isinstance(who, str):
                    step = self.case.steps[at]
                    numbers = range(1, self.case.brokers + 1)
                    any(self._with_step(at, with_argument(step, name, number)) for number in numbers)

    def _shorter_times(self) -> None:
        for at in range(len(self.case.steps)):
            for name, ms in durations_of(self.case.steps[at]).items():
                step = self.case.steps[at]
                shorter = (each for each in ROUND_MS if 0 < each < ms)
                any(self._with_step(at, with_argument(step, name, each)) for each in shorter)
        for at in range(len(self.case.steps)):
            previous_ms = self.case.steps[at - 1].at_ms if at else 0
            gap_ms = self.case.steps[at].at_ms - previous_ms
            shorter = (each for each in ROUND_MS if each < gap_ms)
            any(self.attempt(_moved(self.case, at, gap_ms - each)) for each in shorter)


def _kind(violation: Violation) -> tuple[str, str]:
    """What must stay the same; of rules that could not go on, also where."""
    where = violation.text.rpartition("(")[2] if violation.anomaly == CRASH else ""
    return violation.anomaly, where


def _moved(case: Case, at: int, earlier_ms: int) -> Case:
    """A step and all that follow, so much earlier."""
    later = tuple(replace(step, at_ms=step.at_ms - earlier_ms) for step in case.steps[at:])
    return case.with_steps(case.steps[:at] + later)


# --------------------------------------------------------------------------------------- simpler cases


def _without_client(case: Case, name: str) -> Case:
    clients = tuple(client for client in case.clients if client.name != name)
    steps = tuple(step for step in case.steps if named(step).get("client") != name)
    return replace(case, clients=clients, steps=steps)


def _without_topic(case: Case, name: str) -> Case:
    topics = tuple(topic for topic in case.topics if topic.name != name)
    steps = (_step_without_topic(step, name) for step in case.steps)
    return replace(case, topics=topics, steps=tuple(step for step in steps if step is not None))


def _step_without_topic(step: Step, name: str) -> Step | None:
    writes = named(step).get("writes")
    if writes is not None:
        left = tuple(write for write in writes if write[0] != name)
        return with_argument(step, "writes", left) if left else None
    return None if _mentions(step.arguments, name) else step


def _mentions(value: Any, topic: str) -> bool:
    """Whether a topic is named, also in a role such as `leader t 0`."""
    if isinstance(value, tuple):
        return any(_mentions(each, topic) for each in value)
    return isinstance(value, str) and topic in value.split()


def _simpler_topics(topic: TopicPlan) -> Iterator[TopicPlan]:
    if topic.partitions > 1:
        yield replace(topic, partitions=1)
    for key in topic.configs:
        if key != "min.insync.replicas":
            yield replace(
                topic, configs={other: topic.configs[other] for other in topic.configs if other != key}
            )


def _with_topic(case: Case, topic: TopicPlan) -> Case:
    """With a simpler topic in place of its namesake; what went to partitions that it lacks goes to 0."""
    topics = tuple(topic if each.name == topic.name else each for each in case.topics)
    if topic.partitions > 1:
        return replace(case, topics=topics)
    return replace(case, topics=topics, steps=tuple(_in_partition_0(step, topic.name) for step in case.steps))


def _in_partition_0(step: Step, topic: str) -> Step:
    given = named(step)
    for name, value in given.items():
        if name == "partition" and given.get("topic") == topic:
            given[name] = 0
        elif name == "writes":
            given[name] = tuple((each[0], 0 if each[0] == topic else each[1], *each[2:]) for each in value)
        elif isinstance(value, str) and value.split()[1:2] == [topic]:
            given[name] = f"{value.split()[0]} {topic} 0"
    return replace(step, arguments=tuple(given.values()))


def _with_a_broker_less(case: Case) -> Case:
    left = case.brokers - 1
    topics = tuple(replace(topic, replicas=min(topic.replicas, left)) for topic in case.topics)
    steps = tuple(step for step in case.steps if not _names_broker(step, left + 1))
    return replace(case, brokers=left, topics=topics, steps=steps)


def _names_broker(step: Step, number: int) -> bool:
    return number in brokers_of(step).values() or number in named(step).get("replicas", ())


def _smaller(step: Step) -> Iterator[Step]:
    """The same with fewer records."""
    given = named(step)
    if given.get("count", 1) > 1:
        yield with_argument(step, "count", 1)
    writes = given.get("writes", ())
    if len(writes) > 1:
        for at in range(len(writes)):
            yield with_argument(step, "writes", writes[:at] + writes[at + 1 :])
    if any(count > 1 for _, _, count in writes):
        yield with_argument(step, "writes", tuple((topic, partition, 1) for topic, partition, _ in writes))
    if given.get("kept_percent", 0):
        yield with_argument(step, "kept_percent", 0)
