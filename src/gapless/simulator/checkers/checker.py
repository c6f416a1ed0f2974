"""What checkers have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Never

if TYPE_CHECKING:
    from gapless.core.partition import Partition
    from gapless.simulator.history import Place, Polled, Reading
    from gapless.simulator.scene import Scene
    from gapless.simulator.world import Host


class Violation(Exception):
    """A promise was broken."""

    def __init__(
        self, anomaly: str, text: str, at_ms: int, place: Place | None = None, records: tuple[int, ...] = ()
    ) -> None:
        super().__init__(f"{anomaly}: {text}")
        self.anomaly = anomaly
        self.text = text
        self.at_ms = at_ms
        self.place = place
        self.records = records
        """Where it was seen and of which records, if it is about some: what a story must be about."""


class Checker:
    """Looks on, and speaks up."""

    name: ClassVar[str]
    meaning: ClassVar[str]

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    @classmethod
    def looks_inside(cls) -> bool:
        """Whether it looks at every replica that changes, which clients cannot see."""
        return cls.on_change is not Checker.on_change

    def on_change(self, host: Host, place: Place, replica: Partition) -> None:
        """Look at a replica whose ends, watermark or leadership have just changed."""

    def at_end(self) -> None:
        """Look at everything, when all is settled."""

    def fail(self, text: str, place: Place | None = None, *records: int) -> Never:
        """The promise is broken: where, and for which records."""
        raise Violation(self.name, text, self.scene.world.now_ms, place, records)

    def is_excused(self, place: Place) -> bool:
        """Whether more has failed than this topic is made to bear."""
        return place[0] in self.scene.excused

    def judged(self, reading: Reading) -> list[Polled]:
        """What a consumer got, as far as it is judged: of an excused topic, what came before that."""
        if not self.is_excused(reading.place):
            return reading.polled
        return reading.polled[: self.scene.read_before.get(reading, 0)]


CHECKERS: dict[str, type[Checker]] = {}


def promise(checker: type[Checker]) -> type[Checker]:
    """Register a checker."""
    CHECKERS[checker.name] = checker
    return checker
