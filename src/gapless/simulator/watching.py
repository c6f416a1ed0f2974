"""Looking on while a case is played: for a trace, a story, or coverage. Who looks on changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gapless.simulator.case import Step
    from gapless.simulator.scene import Scene
    from gapless.simulator.world import World


class Watcher:
    """One who looks on: at nothing, unless a method is given a meaning."""

    def enter(self, world: World) -> None:
        """The world is there, and nobody has started yet."""

    def begin(self, scene: Scene) -> None:
        """The brokers serve, the clients are there, and the first step comes next."""

    def before(self, step: Step) -> None:
        """A step is about to happen."""

    def after(self, step: Step, came_to_pass: bool) -> None:
        """A step has happened; or not, if there was nobody to whom it could, or if its moment comes later."""
