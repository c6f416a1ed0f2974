"""What the assignors promise, for any members and topics."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.core.consumer_groups.assignors import ASSIGNORS, Spec, assign_ranges, assign_uniformly
from gapless.wire.consumer_group_records import Assigned

TOPICS = [UUID(int=n) for n in range(1, 5)]
sizes = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in TOPICS})
wishes = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.sampled_from(TOPICS), unique=True).map(tuple), min_size=1
)


def spec_of(
    members: dict[str, tuple[UUID, ...]],
    partitions: dict[UUID, int],
    previous: dict[str, Assigned] | None = None,
) -> Spec:
    return Spec(members, dict.fromkeys(members), partitions, previous or {})


def places(targets: dict[str, Assigned]) -> list[tuple[UUID, int]]:
    return [(t, p) for target in targets.values() for t, parts in target.items() for p in parts]


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(members=wishes, partitions=sizes)
def test_every_wanted_partition_has_one_owner_who_wants_it(
    name: str, members: dict[str, tuple[UUID, ...]], partitions: dict[UUID, int]
) -> None:
    targets = ASSIGNORS[name](spec_of(members, partitions))
    assert targets.keys() == members.keys()
    wanted = {topic for topics in members.values() for topic in topics}
    assert sorted(places(targets)) == sorted((t, p) for t in wanted for p in range(partitions[t]))
    assert all(topic in members[member] for member, target in targets.items() for topic in target)


@given(members=st.sets(st.sampled_from("abcdefgh"), min_size=1), partitions=sizes)
def test_members_with_the_same_topics_have_the_same_share(
    members: set[str], partitions: dict[UUID, int]
) -> None:
    targets = assign_uniformly(spec_of({member: tuple(TOPICS) for member in sorted(members)}, partitions))
    shares = [sum(map(len, target.values())) for target in targets.values()]
    assert max(shares) - min(shares) <= 1


@given(members=wishes, partitions=sizes)
def test_an_even_assignment_is_kept(
    members: dict[str, tuple[UUID, ...]], partitions: dict[UUID, int]
) -> None:
    targets = assign_uniformly(spec_of(members, partitions))
    assert assign_uniformly(spec_of(members, partitions, targets)) == targets


def test_a_newcomer_takes_no_more_than_its_share() -> None:
    partitions = {TOPICS[0]: 12}
    three = assign_uniformly(spec_of(dict.fromkeys("abc", (TOPICS[0],)), partitions))
    four = assign_uniformly(spec_of(dict.fromkeys("abcd", (TOPICS[0],)), partitions, three))
    moved = sum(len(set(three[name][TOPICS[0]]) - set(four[name][TOPICS[0]])) for name in "abc")
    assert moved == len(four["d"][TOPICS[0]]) == 3


def test_ranges_of_topics_of_one_size_belong_together() -> None:
    partitions = {TOPICS[0]: 5, TOPICS[1]: 5}
    members: dict[str, tuple[UUID, ...]] = dict.fromkeys("ba", (TOPICS[0], TOPICS[1]))
    targets = assign_ranges(spec_of(members, partitions))
    assert targets["a"] == {TOPICS[0]: [0, 1, 2], TOPICS[1]: [0, 1, 2]}
    assert targets["b"] == {TOPICS[0]: [3, 4], TOPICS[1]: [3, 4]}


def test_ranges_go_to_static_members_first() -> None:
    spec = Spec({"a": (TOPICS[0],), "z": (TOPICS[0],)}, {"a": None, "z": "one"}, {TOPICS[0]: 2}, {})
    assert assign_ranges(spec)["z"] == {TOPICS[0]: [0]}
