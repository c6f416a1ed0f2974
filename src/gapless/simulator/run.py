"""Play one case, with all checkers looking on."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field

import gapless.simulator.checkers.all  # noqa: F401  each registers itself
from gapless.core.contract import InvariantViolated
from gapless.simulator.actions import ACTIONS
from gapless.simulator.case import Case, Step
from gapless.simulator.checkers import CHECKERS, Checker, Violation
from gapless.simulator.checkers.lost_write import LostWrite
from gapless.simulator.faults import FAULTS
from gapless.simulator.scene import Scene
from gapless.simulator.watching import Watcher

CONTRADICTION = "contradiction"
CRASH = "crash"
NOBODY = Watcher()


@dataclass(slots=True)
class Report:
    """What came of a case."""

    case: Case
    violation: Violation | None
    events: int
    records: int
    faults: dict[str, int] = field(default_factory=dict)
    virtual_ms: int = 0
    failed_ms: int = 0
    """When the promise was found to be broken, counted from the first step."""
    promised: int = 0
    judged: int = 0
    """How many records were acknowledged by all in sync, or committed; how many of them had to be there."""
    excused: dict[str, str] = field(default_factory=dict)
    """Topics that may have lost records by rights, and why."""


def play(case: Case, watcher: Watcher = NOBODY) -> Report:
    """Play a case to its end, or to the first broken promise."""
    return play_scene(Scene(case, watcher.enter), watcher)


def play_scene(scene: Scene, watcher: Watcher = NOBODY) -> Report:
    """Play what is on stage."""
    inside = not scene.case.harm_only
    checkers = [checker(scene) for checker in CHECKERS.values() if inside or not checker.looks_inside()]
    scene.on_change += [each.on_change for each in checkers if each.looks_inside()]
    began_ms = scene.world.now_ms
    watcher.begin(scene)
    violation = _broken(scene, checkers, watcher)
    world = scene.world
    return Report(
        scene.case,
        violation,
        world.steps + world.network.sent,
        len(scene.history.writes),
        scene.injected,
        world.now_ms - began_ms,
        0 if violation is None else violation.at_ms - began_ms,
        sum(write.must_survive for write in scene.history.writes.values()),
        0 if violation is not None else sum(map(LostWrite(scene).is_judged, scene.history.writes.values())),
        scene.excused,
    )


def _broken(scene: Scene, checkers: list[Checker], watcher: Watcher) -> Violation | None:
    def perform(scene: Scene, step: Step) -> None:
        watcher.before(step)
        action = ACTIONS.get(step.what)
        came_to_pass = True
        if action is not None:
            action(scene, *step.arguments)
        else:
            came_to_pass = FAULTS[step.what].inject(scene, *step.arguments)
            if came_to_pass:
                scene.injected[step.what] = scene.injected.get(step.what, 0) + 1
        watcher.after(step, came_to_pass)

    try:
        scene.play(perform)
        for checker in checkers:
            checker.at_end()
    except Violation as found:
        return found
    except InvariantViolated as contradiction:
        return Violation(CONTRADICTION, str(contradiction), scene.world.now_ms)
    except Exception as error:  # noqa: BLE001  a rule that cannot go on would have ended its broker
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rpartition('gapless/')[2]}, {last.name}"
        return Violation(CRASH, f"{type(error).__name__}: {error} ({where})", scene.world.now_ms)
    return None
