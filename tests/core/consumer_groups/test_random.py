"""Members that come, go, fall silent, miss answers and meet a restarting broker, in any order."""

from __future__ import annotations

from random import Random

import pytest

from gapless.core.consumer_groups.group import GroupState
from gapless.wire.errors import ErrorCode

from .company import SESSION_MS, Company, Worker

PARTITIONS = 7
STEPS = 300
GIVE_UP_AND_REJOIN = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


class Crew:
    """Members that behave as clients do, but lose answers now and then."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.company = Company(PARTITIONS)
        self.members = [self.company.member(f"m{n}") for n in range(5)]
        self.active: dict[str, bool] = {member.member_id: False for member in self.members}

    def step(self) -> None:
        member = self.random.choice(self.members)
        action = self.random.random()
        if action < 0.02:
            self.company.restart()
        elif action < 0.05:
            self.company.world.advance(self.random.choice([100, SESSION_MS // 2, SESSION_MS]))
            self.forget_the_dead()
        elif not self.active[member.member_id]:
            if action < 0.3:
                self.active[member.member_id] = member.join().error is ErrorCode.NONE
        elif action < 0.1:
            member.leave()
            self.stop(member)
        elif action < 0.2:
            member.send(member.epoch, topic_partitions=member.owned_by_topic())  # the answer is lost
        else:
            self.beat(member)

    def beat(self, member: Worker) -> None:
        pending = member.beat()
        if pending.error in GIVE_UP_AND_REJOIN:
            self.stop(member)

    def stop(self, member: Worker) -> None:
        self.active[member.member_id] = False
        member.owned, member.epoch = [], 0

    def forget_the_dead(self) -> None:
        """Whoever was silent for a session has noticed, too: clients give up their partitions then."""
        state = self.company.state().consumer_groups.groups.get("g")
        for member in self.members:
            if self.active[member.member_id] and (state is None or member.member_id not in state.members):
                self.stop(member)

    def check(self) -> None:
        owned = [place for member in self.members for place in member.owned]
        assert len(owned) == len(set(owned)), "a partition has two owners"


@pytest.mark.parametrize("seed", range(12))
def test_a_partition_never_has_two_owners_and_in_the_end_each_has_one(seed: int) -> None:
    crew = Crew(seed)
    for _ in range(STEPS):
        crew.step()
        crew.check()
    crew.company.world.advance(SESSION_MS)  # ghosts of members that were fenced go
    crew.forget_the_dead()
    for member in crew.members:
        if not crew.active[member.member_id]:
            assert member.join().error is ErrorCode.NONE
    crew.company.settle_down(*crew.members)
    crew.check()
    assert crew.company.newer().state is GroupState.STABLE
    assert sorted(len(member.owned) for member in crew.members) == [1, 1, 1, 2, 2]


def test_the_same_seed_gives_the_same_assignments() -> None:
    def run() -> list[tuple[int, list[int]]]:
        crew = Crew(5)
        for _ in range(100):
            crew.step()
        return [(member.epoch, member.partitions) for member in crew.members]

    assert run() == run()
