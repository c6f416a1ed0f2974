"""The order of events: brokers, both sides, faults; then all comes to rest, and the audit judges both.

Nothing is shown here: a `Watcher` is told how it goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any, Protocol

from gapless.demo.children import Child
from gapless.demo.faults import Fault, Kind, faults_of
from gapless.demo.sides import EVERYDAY, GAPLESS, PARTITIONS, SOURCES, Side
from gapless.errors import GaplessError
from gapless.testing.cluster import Cluster
from gapless.testing.state import Refused

_START_S = 180.0
_MEET_S = 300.0
_LOSE_WITHIN_S = 5.0
_FINISH_S = 300.0
_AUDIT_S = 600.0
_STANDSTILL_S = 300.0
_QUIET_S = 10.0
_LOOK_S = 0.2
_LOOK_AT_BROKERS_S = 1.5


@dataclass(frozen=True, slots=True)
class Plan:
    """How much, how fast, and where it is kept."""

    folder: Path
    seed: int
    orders: int
    """On each side, from all shops together."""
    seconds: float
    """In which they are sent, if nothing holds them up."""
    batches: int
    """Of the pipelines, at least."""
    short: bool = False
    """Whether Java should rather start quickly than run fast."""

    @property
    def per_shop(self) -> int:
        return self.orders // len(SOURCES)


@dataclass(slots=True)
class Progress:
    """How far one side is."""

    acknowledged: int = 0
    billed: int = 0
    carried: int = 0


@dataclass(slots=True)
class Snapshot:
    """How it goes, at a moment."""

    plan: Plan
    phase: str
    seconds: float
    sides: dict[str, Progress]
    brokers: dict[int, bool] = field(default_factory=dict)
    """Whether it runs."""
    in_sync: dict[str, list[tuple[int | None, int]]] = field(default_factory=dict)
    """By topic, for each partition: its leader, and how many replicas are in sync."""
    faults: int = 0
    """How many there were."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was found."""

    plan: Plan
    faults: list[str]
    reports: dict[str, dict[str, Any]]
    """By side: what the audit says."""
    pages: dict[str, Path]
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether Gapless lost, doubled and reordered nothing, and carried all that there was."""
        report = self.reports[GAPLESS]
        promised = report["hops"][0]["counts"]["promised"]
        return bool(report["verdict"] == "clean" and promised == self.plan.per_shop * len(SOURCES))


class Standstill(GaplessError):
    """It does not go on."""


class Watcher(Protocol):
    """Who is told how it goes."""

    def line(self, text: str) -> None: ...
    def fault(self, text: str) -> None: ...
    def look(self, snapshot: Snapshot) -> None: ...


def run_demo(plan: Plan, cluster: Cluster, watcher: Watcher) -> Result:
    """Play the demo on a cluster that is up, in a folder that exists."""
    with ExitStack() as stack:
        return Scene(plan, cluster, watcher, stack).play()


class Scene:
    """All who take part."""

    def __init__(self, plan: Plan, cluster: Cluster, watcher: Watcher, stack: ExitStack) -> None:
        self._plan = plan
        self._cluster = cluster
        self._watcher = watcher
        self._stack = stack
        self._began_s = time.monotonic()
        self._sides = {name: Side(name, plan.folder) for name in (EVERYDAY, GAPLESS)}
        usual = {"bootstrap": cluster.bootstrap, "folder": str(plan.folder)}
        rate = {"orders": plan.per_shop, "per_s": plan.per_shop / plan.seconds}
        self._producers = {
            (side, source): self._child(
                f"{side} producer of {source}",
                "producing",
                {**usual, **rate, "side": side, "source": source},
            )
            for side in self._sides
            for source in SOURCES
        }
        self._consumers = {
            side: self._child(f"{side} consumer", "consuming", {**usual, "side": side})
            for side in self._sides
        }
        self._driver = self._child(
            "Spark driver",
            "carrying",
            {
                **usual,
                "orders": plan.per_shop * len(SOURCES),
                "batches": plan.batches,
                "short": plan.short,
            },
        )
        self._network = Lock()
        """Of whoever does something to it, for as long as it lasts."""
        self._is_over = Event()
        self._faults: list[str] = []
        self._in_sync: dict[str, list[tuple[int | None, int]]] = {}
        self._looked_s = 0.0

    def play(self) -> Result:
        plan = self._plan
        for side in self._sides.values():
            for topic in (side.orders, side.priced):
                self._cluster.create_topic(topic, PARTITIONS)
        self._cluster.create_topic(self._sides[EVERYDAY].ledger)
        self._watcher.line(
            f"{len(self._cluster.brokers)} brokers, two topics of {PARTITIONS} partitions on each side"
        )
        for child in self._children:
            self._stack.callback(child.kill)  # before it starts: an interrupt may come at any moment
            child.start()
        self._watcher.line(
            f"on each side {plan.per_shop * len(SOURCES):,} orders, "
            f"{len(SOURCES)} producers, a consumer, a Spark pipeline"
        )
        self._send_through_faults()
        reports = self._judged()
        return Result(
            plan,
            self._faults,
            reports,
            {name: side.page for name, side in self._sides.items()},
            time.monotonic() - self._began_s,
        )

    def _child(self, name: str, module: str, arguments: dict[str, Any]) -> Child:
        return Child(name, module, arguments, self._plan.folder / f"{name.replace(' ', '-')}.log")

    @property
    def _children(self) -> list[Child]:
        return [self._driver, *self._consumers.values(), *self._producers.values()]

    # ------------------------------------------------------------------------------------- phases

    def _send_through_faults(self) -> None:
        """Each fault waits for its moment by itself: the next one does not wait until it is over."""
        faults = faults_of(self._plan.seed)
        with ThreadPoolExecutor(len(faults)) as aside:
            trouble = [aside.submit(self._play, fault) for fault in faults]
            try:
                self._until(lambda: self._are_sent(trouble), "orders are sent", None)
                self._until(lambda: _are_over(trouble), "all is sent, the last faults are awaited", None)
            except BaseException:
                self._is_over.set()
                raise

    def _are_sent(self, trouble: list[Future[None]]) -> bool:
        _are_over(trouble)  # raises what went wrong
        return all(each.is_done for each in self._producers.values())

    def _judged(self) -> dict[str, dict[str, Any]]:
        """Of each side, once all that was sent is billed and carried there, as far as it ever will be."""
        self._driver.ask("finish")
        carrying = set(self._sides)

        def are_carried() -> bool:
            for side in [each for each in carrying if self._is_at_rest(each)]:
                carrying.remove(side)
                self._consumers[side].kill()
                self._driver.ask(f"audit {side}")
            return not carrying

        self._until(are_carried, "the rest is carried", _FINISH_S)
        self._until(
            lambda: all(self._driver.heard(f"audited {side}") for side in self._sides),
            "the audit reads both sides",
            _AUDIT_S,
        )
        return {side: self._driver.said[f"report_{side}"] for side in self._sides}

    def _is_at_rest(self, side: str) -> bool:
        """Whoever does not come to say that all is billed has billed nothing for a while."""
        consumer, orders = self._consumers[side], self._plan.per_shop * len(SOURCES)
        said = {
            EVERYDAY: consumer.said.get("is_at_end", False),
            GAPLESS: self._progress(GAPLESS).billed >= orders,
        }
        is_quiet = time.monotonic() - consumer.said_s.get("billed", 0.0) > _QUIET_S
        return self._driver.heard(f"finished {side}") and (said[side] or is_quiet)

    # ------------------------------------------------------------------------------------- faults

    def _play(self, fault: Fault) -> None:
        while self._done() < fault.at:
            if self._is_over.wait(0.02):
                return
        _PLAYED[fault.kind](self, fault)

    def _note(self, text: str) -> None:
        self._faults.append(f"{time.monotonic() - self._began_s:.1f} s: {text}")
        self._watcher.fault(text)

    def _lose_acks(self, fault: Fault) -> None:
        with self._network:
            before = self._cluster.acks_lost
            self._cluster.lose_acks(fault.which)
            deadline_s = time.monotonic() + _LOSE_WITHIN_S
            while self._cluster.acks_lost < before + fault.which and time.monotonic() < deadline_s:
                if self._is_over.wait(0.05):
                    return
            self._cluster.heal()
            lost = self._cluster.acks_lost - before
        self._note(f"{lost} writes were done, and their acknowledgements lost")

    def _kill_leader(self, fault: Fault) -> None:
        with self._network:
            victim = self._cluster.leader(self._sides[EVERYDAY].orders, fault.which)
            for other in self._cluster.brokers:
                if other != victim:
                    self._cluster.cut(victim, other)
            time.sleep(fault.cut_s)
            self._cluster.kill(victim)
            cut = f"is cut off from its followers for {fault.cut_s:.1f} s"
            self._note(f"broker {victim}, a leader, {cut}; SIGKILL")
            self._cluster.heal()
        time.sleep(fault.pause_s)
        self._cluster.restart(victim)
        self._watcher.line(f"broker {victim} is back")

    def _kill_producers(self, fault: Fault) -> None:
        source = SOURCES[fault.which]
        victims = [self._producers[side, source] for side in self._sides]
        if any(child.is_done for child in victims):
            self._watcher.line(f"a producer of {source} had sent everything already: it is not killed")
            return
        self._kill_and_restart(victims, fault.pause_s, f"the producers of {source}, one of each side")

    def _kill_consumers(self, fault: Fault) -> None:
        self._kill_and_restart(list(self._consumers.values()), fault.pause_s, "both consumers")

    def _kill_driver(self, fault: Fault) -> None:
        self._hear("running", _START_S)
        self._driver.ask("stop when written")
        self._hear("written", _MEET_S)
        who = self._driver.said["who_has_written"]
        what = f"the Spark driver; {who}: batch written, not noted"
        self._kill_and_restart([self._driver], fault.pause_s, what)
        self._hear("running", _START_S)

    def _hear(self, event: str, timeout_s: float) -> None:
        """Until the driver tells of an event."""
        deadline_s = time.monotonic() + timeout_s
        while not self._driver.heard(event):
            self._driver.check()
            if self._is_over.wait(0.02) or time.monotonic() > deadline_s:
                raise Standstill(f"the Spark driver did not say '{event}' within {timeout_s:g} s")

    def _kill_and_restart(self, victims: list[Child], pause_s: float, what: str) -> None:
        for child in victims:
            child.kill()
        self._note(f"SIGKILL for {what}")
        time.sleep(pause_s)
        for child in victims:
            child.start()

    # ------------------------------------------------------------------------------------ looking

    def _progress(self, side: str) -> Progress:
        shops = [child for (of, _), child in self._producers.items() if of == side]
        return Progress(
            sum(child.said.get("acknowledged", 0) for child in shops),
            self._consumers[side].said.get("billed", 0),
            self._driver.said.get(f"{side}_carried", 0),
        )

    def _done(self) -> float:
        """How much of all orders was acknowledged, on the side that is ahead."""
        orders = self._plan.per_shop * len(SOURCES)
        return max(self._progress(side).acknowledged for side in self._sides) / orders

    def _until(self, condition: Callable[[], bool], phase: str, timeout_s: float | None) -> None:
        """Look at everything again and again, until something has come true."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        moved_s, before = time.monotonic(), self._moved()
        while not condition():
            for child in self._children:
                child.check()
            now_s = time.monotonic()
            if (moved := self._moved()) != before:
                moved_s, before = now_s, moved
            if deadline_s is None and now_s - moved_s > _STANDSTILL_S:
                raise Standstill(f"nothing has moved for {_STANDSTILL_S:g} s: {phase}")
            if deadline_s is not None and now_s > deadline_s:
                raise Standstill(f"it took longer than {timeout_s:g} s: {phase}")
            self._watcher.look(self._snapshot(phase))
            time.sleep(_LOOK_S)
        self._watcher.look(self._snapshot(phase))

    def _moved(self) -> list[Progress]:
        return [self._progress(side) for side in self._sides]

    def _snapshot(self, phase: str) -> Snapshot:
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_AT_BROKERS_S:
            self._looked_s = now_s
            self._in_sync = {side.orders: self._replicas_of(side.orders) for side in self._sides.values()}
        running = set(self._cluster.running)
        return Snapshot(
            self._plan,
            phase,
            now_s - self._began_s,
            {side: self._progress(side) for side in self._sides},
            {broker: broker in running for broker in self._cluster.brokers},
            self._in_sync,
            len(self._faults),
        )

    def _replicas_of(self, topic: str) -> list[tuple[int | None, int]]:
        try:
            found = [self._cluster.partition(topic, each) for each in range(PARTITIONS)]
        except (OSError, Refused):
            return self._in_sync.get(topic, [])
        return [(each.leader, len(each.in_sync)) for each in found]


_PLAYED: dict[Kind, Callable[[Scene, Fault], None]] = {
    Kind.LOSE_ACKS: Scene._lose_acks,
    Kind.KILL_LEADER: Scene._kill_leader,
    Kind.KILL_PRODUCERS: Scene._kill_producers,
    Kind.KILL_CONSUMERS: Scene._kill_consumers,
    Kind.KILL_DRIVER: Scene._kill_driver,
}


def _are_over(trouble: list[Future[None]]) -> bool:
    """Whether all faults are. Raises what went wrong in one."""
    done = [each for each in trouble if each.done()]
    for each in done:
        each.result()
    return len(done) == len(trouble)
