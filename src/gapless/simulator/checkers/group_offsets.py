"""A group goes on where it has committed to be: never before that, never after."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Commit, Outcome, Start


@promise
class GroupOffsets(Checker):
    """A commit without an answer may come to pass at any later time, but not in a later generation.

    So a request that strays can move an offset back, in Kafka as here: commits have no numbers. Records are
    then dealt with again, and none is passed over. What a group has committed is in a log of its coordinator:
    no loss of an excused topic explains that it is another.
    """

    name = "group-offsets"
    meaning = (
        "a group's offset is the one that was committed last, and no member of an older generation moves it"
    )

    def at_end(self) -> None:
        for start in self.scene.history.starts:
            self._check(start)

    def _check(self, start: Start) -> None:
        commits = [
            commit
            for commit in self.scene.history.commits
            if (commit.group, commit.place) == (start.group, start.place)
        ]
        certain = [commit for commit in commits if self._is_certain(commit, start)]
        last = max(certain, key=lambda commit: (commit.generation, commit.told), default=None)
        allowed = {-1 if last is None else last.offset: None}
        for commit in commits:
            is_open = not self._is_certain(commit, start) and commit.outcome is not Outcome.ABORTED
            if (is_open or commit.astray) and (last is None or commit.generation >= last.generation):
                allowed[commit.offset] = None
        if start.offset not in allowed:
            topic, partition = start.place
            told = "nothing was committed" if last is None else f"{last.member} has committed {last.offset}"
            self.fail(
                f"{start.member} is told to go on with {topic}-{partition} at {start.offset} for "
                f"{start.group}, though {told}",
                start.place,
            )

    @staticmethod
    def _is_certain(commit: Commit, start: Start) -> bool:
        return commit.outcome is Outcome.COMMITTED and commit.told < start.asked
