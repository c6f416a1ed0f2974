"""In each generation of a group a partition belongs to one member."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.history import Place


@promise
class GroupOwnedTwice(Checker):
    """With the newer protocol a generation is an epoch of the group that a member has reached."""

    name = "group-owned-twice"
    meaning = "a partition belongs to one member of a group at most, in each generation"

    def at_end(self) -> None:
        owners: dict[tuple[str, int, Place], str] = {}
        for owned in self.scene.history.owned:
            owner = owners.setdefault((owned.group, owned.generation, owned.place), owned.member_id)
            if owner != owned.member_id:
                topic, partition = owned.place
                self.fail(
                    f"in generation {owned.generation} of {owned.group} both {owner} and {owned.member_id} "
                    f"have {topic}-{partition}",
                    owned.place,
                )
