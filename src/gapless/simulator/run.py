"""Play one case, with all checkers looking on."""

from __future__ import annotations

from dataclasses import dataclass, field

import gapless.simulator.checkers.all  # noqa: F401  each registers itself
from gapless.core.contract import InvariantViolated
from gapless.simulator.actions import ACTIONS
from gapless.simulator.case import Case, Step
from gapless.simulator.checkers import CHECKERS, Checker, Violation
from gapless.simulator.faults import FAULTS
from gapless.simulator.scene import Scene


@dataclass(slots=True)
class Report:
    """What came of a case."""

    case: Case
    violation: Violation | None
    events: int
    records: int
    faults: dict[str, int] = field(default_factory=dict)
    virtual_ms: int = 0


def perform(scene: Scene, step: Step) -> None:
    """Let a step happen."""
    action = ACTIONS.get(step.what)
    if action is not None:
        action(scene, *step.arguments)
    elif FAULTS[step.what].inject(scene, *step.arguments):
        scene.injected[step.what] = scene.injected.get(step.what, 0) + 1


def play(case: Case) -> Report:
    """Play a case to its end, or to the first broken promise."""
    return play_scene(Scene(case))


def play_scene(scene: Scene) -> Report:
    """Play what is on stage."""
    checkers = [checker(scene) for checker in CHECKERS.values()]
    scene.on_change += [each.on_change for each in checkers if type(each).on_change is not Checker.on_change]
    began_ms = scene.world.now_ms
    violation = None
    try:
        scene.play(perform)
        for checker in checkers:
            checker.at_end()
    except Violation as found:
        violation = found
    except InvariantViolated as contradiction:
        violation = Violation("contradiction", str(contradiction), scene.world.now_ms)
    world = scene.world
    return Report(
        scene.case,
        violation,
        world.steps + world.network.sent,
        len(scene.history.writes),
        scene.injected,
        world.now_ms - began_ms,
    )
