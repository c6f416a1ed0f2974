"""Offsets in transactions: pending until the marker, visible together with it or never (claim C8)."""

from __future__ import annotations

import pytest

from gapless.core.groups.commits import Committer, NewOffset, commit_in_transaction
from gapless.core.shard import CoordinatorError
from gapless.wire.errors import ErrorCode
from gapless.wire.transaction_records import EndMarker
from tests.core.groups.crowd import Crowd

PRODUCER = (7, 0)
NOBODY = Committer()


@pytest.fixture
def crowd() -> Crowd:
    crowd = Crowd()
    crowd.world.create_topic("t", partitions=3)
    return crowd


def commit(
    crowd: Crowd,
    offset: int,
    partition: int = 0,
    *,
    who: Committer = NOBODY,
    producer: tuple[int, int] = PRODUCER,
) -> list[ErrorCode]:
    offsets = [NewOffset("t", partition, offset)]
    return commit_in_transaction(crowd.state(), "g", who, producer, offsets)


def end(crowd: Crowd, committed: bool, producer: tuple[int, int] = PRODUCER) -> None:
    """Write the marker that ends a transaction."""
    crowd.state().shard.write_marker(producer, EndMarker(committed, coordinator_epoch=0), strict=False)


def test_pending_offsets_show_with_the_commit(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1})
    assert commit(crowd, 5) == [ErrorCode.NONE]
    assert crowd.fetch(("t", 0)) == {("t", 0): 1}
    end(crowd, committed=True)
    assert crowd.fetch(("t", 0)) == {("t", 0): 5}


def test_pending_offsets_vanish_with_an_abort(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1})
    commit(crowd, 5)
    end(crowd, committed=False)
    assert crowd.fetch(("t", 0), stable=True) == {("t", 0): 1}


def test_who_wants_stable_offsets_has_to_wait_for_the_transaction(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1, ("t", 1): 2})
    commit(crowd, 5)
    for version in (7, 8, 9):
        wanted = crowd.fetch(("t", 0), ("t", 1), stable=True, version=version)
        assert wanted == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT, ("t", 1): 2}
    everything = crowd.fetch(stable=True, everything=True)
    assert everything[("t", 0)] is ErrorCode.UNSTABLE_OFFSET_COMMIT
    end(crowd, committed=True)
    assert crowd.fetch(("t", 0), stable=True) == {("t", 0): 5}


def test_the_last_commit_in_the_log_wins_not_the_last_marker(crowd: Crowd) -> None:
    commit(crowd, 5)
    crowd.commit({("t", 0): 9})
    end(crowd, committed=True)
    assert crowd.fetch(("t", 0)) == {("t", 0): 9}


def test_transactions_of_several_producers_are_apart(crowd: Crowd) -> None:
    commit(crowd, 5, producer=(1, 0))
    commit(crowd, 6, partition=1, producer=(2, 0))
    end(crowd, committed=False, producer=(1, 0))
    assert crowd.fetch(("t", 0), ("t", 1), stable=True) == {
        ("t", 0): -1,
        ("t", 1): ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
    end(crowd, committed=True, producer=(2, 0))
    assert crowd.fetch(("t", 0), ("t", 1), stable=True) == {("t", 0): -1, ("t", 1): 6}


@pytest.mark.parametrize("committed", [True, False])
def test_a_restart_keeps_what_is_pending(crowd: Crowd, committed: bool) -> None:
    commit(crowd, 5)
    crowd.restart()
    assert crowd.fetch(("t", 0), stable=True) == {("t", 0): ErrorCode.UNSTABLE_OFFSET_COMMIT}
    end(crowd, committed)
    assert crowd.fetch(("t", 0), stable=True) == {("t", 0): 5 if committed else -1}
    crowd.restart()
    assert crowd.fetch(("t", 0), stable=True) == {("t", 0): 5 if committed else -1}


def test_a_zombie_of_an_old_generation_commits_nothing(crowd: Crowd) -> None:
    """KIP-447: the group's generation fences it although its producer's epoch does not."""
    (member,) = crowd.stable(1)
    good = Committer(member.member_id, None, member.generation)
    assert commit(crowd, 5, who=good) == [ErrorCode.NONE]
    cases = [
        (good._replace(generation=member.generation - 1), ErrorCode.ILLEGAL_GENERATION),
        (good._replace(member_id="stranger"), ErrorCode.UNKNOWN_MEMBER_ID),
        (good._replace(instance_id="box"), ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    for who, error in cases:
        with pytest.raises(CoordinatorError) as refused:
            commit(crowd, 6, who=who)
        assert refused.value.code is error
    assert commit(crowd, 7) == [ErrorCode.NONE], "who names no member is fenced by its epoch alone"


def test_a_generation_of_a_group_that_is_not_there_is_refused(crowd: Crowd) -> None:
    with pytest.raises(CoordinatorError) as refused:
        commit(crowd, 6, who=Committer("me", None, 3))
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION


def test_a_group_with_pending_offsets_is_not_expired(crowd: Crowd) -> None:
    commit(crowd, 5)
    crowd.world.advance(8 * 24 * 3_600_000)
    assert "g" in crowd.state().groups
    end(crowd, committed=True)
    assert crowd.fetch(("t", 0), stable=True) == {("t", 0): 5}


def test_deleted_offsets_do_not_come_back_with_the_marker(crowd: Crowd) -> None:
    commit(crowd, 5)
    assert crowd.delete_offsets(("t", 0)).topics[0].partitions[0].error_code == 0
    end(crowd, committed=True)
    assert crowd.fetch(everything=True) == {}
    commit(crowd, 6)
    assert crowd.delete("g") == [ErrorCode.NONE]
    end(crowd, committed=True)
    assert crowd.fetch(everything=True) == {}
    assert crowd.state().held.size_bytes == 0


def test_a_marker_of_a_producer_without_offsets_changes_nothing(crowd: Crowd) -> None:
    crowd.commit({("t", 0): 1})
    end(crowd, committed=True, producer=(99, 3))
    assert crowd.fetch(everything=True) == {("t", 0): 1}
