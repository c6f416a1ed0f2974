"""Absurd and malicious members: Kafka's error, bounded memory, and the others go on."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.core.groups import held, join
from gapless.core.groups.group import GroupState
from gapless.core.groups.state import GroupsState
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import OffsetFetchRequest
from tests.core.groups.crowd import SESSION_MS, Crowd, subscription


def held_bytes(crowd: Crowd) -> int:
    return sum(
        shard.state.held.size_bytes
        for shard in crowd.world.node.shards.values()
        if isinstance(shard.state, GroupsState)
    )


def test_a_group_of_ten_thousand_forms_and_dissolves() -> None:
    crowd = Crowd(group_initial_rebalance_delay_ms="3000", message_max_bytes="10000000")
    crowd.world.trace = _NoTrace()
    members = [crowd.newcomer(version=3) for _ in range(10_000)]
    for member in members:
        member.join()
    crowd.world.advance(6000)
    leader = members[0]
    assert len(leader.joining.reply.members) == 10_000
    for member in members[1:]:
        member.sync()
    ids = [member.joining.reply.member_id for member in members]
    leader.sync({member_id: b"%d" % number for number, member_id in enumerate(ids)})
    assert bytes(members[-1].syncing.reply.assignment) == b"9999"
    assert crowd.group().state is GroupState.STABLE
    crowd.world.advance(SESSION_MS)  # and nobody is heard of again
    assert crowd.group().state is GroupState.EMPTY
    assert held_bytes(crowd) == held.GROUP_BYTES + 1
    assert len(crowd.world.node.timers) < 10


class _NoTrace(list[tuple[int, str]]):
    """The harness keeps every reply as text; ten thousand members would make too much of it."""

    def append(self, _item: tuple[int, str]) -> None:
        return


def test_ids_that_are_never_used_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "MAX_PENDING_JOINS", 100)
    crowd = Crowd()
    first = crowd.newcomer()
    first.member_id = first.send_join().reply.member_id
    for _ in range(100):
        assert crowd.newcomer().send_join().error is ErrorCode.MEMBER_ID_REQUIRED
    assert len(crowd.group().pending_joins) == 100
    assert first.send_join().error is ErrorCode.UNKNOWN_MEMBER_ID
    crowd.world.advance(SESSION_MS)
    assert len(crowd.group().pending_joins) == 0


def test_past_the_limit_nothing_new_is_taken_and_what_is_there_goes_on() -> None:
    crowd = Crowd(group_coordinator_state_max_bytes=str(2**20))
    crowd.world.create_topic("t", partitions=1000)
    (member,) = crowd.stable(1)
    assert member.commit(1) is ErrorCode.NONE
    codes: list[ErrorCode] = []
    for number in range(600):
        codes += crowd.commit({("t", number): 1}, "hog", metadata="x" * 4096)
    assert codes[0] is ErrorCode.NONE
    assert codes[-1] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert held_bytes(crowd) < 1.1 * 2**20
    assert crowd.newcomer("another").join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert crowd.newcomer().join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert crowd.commit({("t", 0): 1}, "third") == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert member.heartbeat() is ErrorCode.NONE
    assert member.commit(2) is ErrorCode.NONE
    member.join()
    assert member.joining.error is ErrorCode.NONE
    assert crowd.delete("hog") == [ErrorCode.NONE]
    assert crowd.commit({("t", 0): 1}, "third") == [ErrorCode.NONE]


def test_a_member_cannot_grow_past_the_limit_either() -> None:
    crowd = Crowd(group_coordinator_state_max_bytes=str(2**20))
    for number in range(4):
        metadata = {"range": subscription("t") + b"x" * 500_000}
        error = crowd.newcomer(f"g-{number}", protocols=metadata).join()
        if error.is_answered() and error.error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            break
    else:
        raise AssertionError("nothing was refused")
    assert held_bytes(crowd) < 2 * 2**20


def test_memory_is_given_back_when_groups_go() -> None:
    crowd = Crowd()
    crowd.world.create_topic("t")
    members = crowd.stable(5)
    assert held_bytes(crowd) > 5 * held.MEMBER_BYTES
    for member in members:
        assert member.leave() is ErrorCode.NONE
    crowd.commit({("t", 0): 1}, metadata="x" * 100)
    crowd.commit({("t", 0): 1}, metadata="x" * 10)
    assert crowd.delete("g") == [ErrorCode.NONE]
    assert held_bytes(crowd) == 0
    crowd.restart()
    assert held_bytes(crowd) == 0


def test_the_sum_is_the_same_after_a_restart() -> None:
    crowd = Crowd()
    crowd.world.create_topic("t")
    members = [crowd.newcomer(instance=f"box-{number}") for number in range(3)]
    crowd.settle(*members)
    members[0].commit(1, metadata="abc")
    again = crowd.newcomer(instance="box-1")
    again.join()
    before = held_bytes(crowd)
    crowd.restart()
    assert held_bytes(crowd) == before


@pytest.mark.parametrize(
    "options",
    [
        {"instance": "x" * 20_000},
        {"protocol_type": "x" * 40_000},
        {"protocols": {"x" * 40_000: b""}},
    ],
)
def test_names_that_fit_into_no_record_are_refused(options: dict[str, Any]) -> None:
    crowd = Crowd()
    assert crowd.newcomer(**options).join().error is ErrorCode.INVALID_REQUEST
    assert "g" not in crowd.state().groups


def test_a_long_client_id_makes_no_longer_member_id() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1, client_id="c" * 32_000)
    assert len(member.member_id) < 300
    crowd.restart()
    assert member.heartbeat() is ErrorCode.NONE


def test_a_member_that_speaks_everything_is_charged_for_it() -> None:
    crowd = Crowd()
    stuffed = crowd.newcomer(protocols={f"p{number}": b"" for number in range(20_000)} | {"range": b""})
    stuffed.join()
    crowd.world.advance(0)
    assert stuffed.joining.error is ErrorCode.NONE
    assert held_bytes(crowd) > 20_000 * 100


def test_topics_without_end_are_charged_to_the_group() -> None:
    crowd = Crowd()
    (member,) = crowd.stable(1, protocols={"range": subscription(*(f"t{n}" for n in range(5000)))})
    assert held_bytes(crowd) > 5000 * 100
    member.leave()
    assert crowd.delete("g") == [ErrorCode.NONE]
    assert held_bytes(crowd) == 0


def test_a_group_that_would_fit_into_no_record_takes_no_more_members() -> None:
    """Kafka lets them all in and fails when it stores the generation, over and over."""
    crowd = Crowd()
    (modest,) = crowd.stable(1, protocols={"range": b"x" * 300_000})
    second = crowd.newcomer(protocols={"range": b"x" * 600_000})
    second.join()
    third = crowd.newcomer(protocols={"range": b"x" * 300_000})
    assert third.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    modest.join()
    assert second.joining.error is modest.joining.error is ErrorCode.NONE
    modest.protocols = {"range": b"x" * 900_000}
    assert modest.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert second.heartbeat() is ErrorCode.NONE


def test_asking_for_the_same_thing_a_thousand_times_gets_it_once() -> None:
    """A small request must not make a reply of gigabytes."""
    crowd = Crowd()
    crowd.world.create_topic("t")
    crowd.commit({("t", 0): 1}, metadata="x" * 4000)
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = group.OffsetFetchRequestTopics
    asked = [
        group(group_id="g", topics=[topic(name="t", partition_indexes=[0] * 1000)]),
        *(group(group_id="g", topics=None) for _ in range(1000)),
    ]
    reply = crowd.ask(ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=asked, require_stable=False)).reply
    assert len(reply.groups) == 1
    only = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0] * 1000)
    body = OffsetFetchRequest(group_id="g", topics=[only], require_stable=False)
    assert len(crowd.ask(ApiKey.OFFSET_FETCH, 5, body).reply.topics[0].partitions) == 1
    assert len(crowd.describe(*["g"] * 1000)) == 1
    end_offset = crowd.state().shard.partition.log.end_offset
    crowd.delete_offsets(*[("t", 0)] * 1000)
    assert crowd.state().shard.partition.log.end_offset == end_offset + 1


@pytest.mark.parametrize("rebalance_ms", [-1, -(2**31), 0])
def test_who_allows_no_time_for_a_rebalance_hurts_only_itself(rebalance_ms: int) -> None:
    crowd = Crowd()
    hasty = crowd.newcomer(rebalance_ms=rebalance_ms)
    hasty.join()
    crowd.world.advance(0)
    assert hasty.joining.error is ErrorCode.NONE
    assert crowd.group().state is GroupState.EMPTY, "it had no time to sync"
    (sane,) = crowd.stable(1)
    hasty.member_id = ""
    hasty.join()
    crowd.world.advance(1000)
    sane.join()
    assert sane.joining.error is hasty.joining.error is ErrorCode.NONE


def test_the_longest_rebalance_timeout_does_no_harm() -> None:
    crowd = Crowd()
    (patient,) = crowd.stable(1, rebalance_ms=2**31 - 1)
    other = crowd.newcomer(rebalance_ms=2**31 - 1)
    other.join()
    crowd.world.advance(SESSION_MS)  # the session ends it
    assert other.joining.error is ErrorCode.NONE
    assert patient.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_assignments_for_strangers_are_ignored() -> None:
    crowd = Crowd()
    member = crowd.newcomer()
    member.join()
    crowd.world.advance(0)
    assert member.leads
    member.sync({member.member_id: b"mine"} | {f"stranger-{number}": b"x" * 100 for number in range(1000)})
    assert bytes(member.syncing.reply.assignment) == b"mine"
    assert len(crowd.group().members) == 1
