"""After an election replicas first agree on one log (D4), and only the living are let in."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from gapless.core.contract import TopicPartition
from gapless.core.log import CleaningPlan
from gapless.core.replication.serving import ReplicaSession
from gapless.wire.apis import ApiKey
from gapless.wire.batch import parse_header, stamp
from gapless.wire.errors import ErrorCode
from gapless.wire.fetch import (
    FetchPartition,
    FetchPartitionResult,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResult,
)
from gapless.wire.fetch_peer import FetchedRecords
from gapless.wire.records import build_batch
from tests.core.cluster_harness import ClusterWorld
from tests.core.harness import batch
from tests.core.replication.scenes import cluster, ends, replica_fetch, stall


def logs(world: ClusterWorld) -> list[list[bytes]]:
    return [world.values(node_id) for node_id in world.hosts]


def test_a_restarted_follower_keeps_what_it_does_not_know_to_be_committed() -> None:
    """Mistake 1 (KIP-101)."""
    world = cluster(2)
    answer = world.produce(1, "t", batch(b"a"))
    world.run(10)
    assert answer.partition.error == 0
    assert world.partition(2).high_watermark == 0
    stall(world, 2)
    world.elect(1)
    world.run(10)
    world.elect(2, isr=(2,))
    world.run(10)
    assert world.values(2) == [b"a"]
    world.crash(2, noticed=False)
    world.start(2)
    world.run(100)
    assert world.values(2) == [b"a"]


def test_fast_successive_changes_of_leaders_do_not_diverge() -> None:
    """Mistake 2 (KIP-279): the follower's last epoch is one that its leader never had."""
    world = cluster(2)
    world.produce(1, "t", batch(b"a"))
    world.run(10)
    stall(world, 1, 2)
    world.produce(1, "t", batch(b"x"), acks=1)
    world.elect(2, isr=(2,))
    world.run(10)
    world.produce(2, "t", batch(b"y"), acks=1)
    world.elect(1, isr=(1,))
    world.run(10)
    world.produce(1, "t", batch(b"z"), acks=1)
    assert logs(world) == [[b"a", b"x", b"z"], [b"a", b"y"]]
    stall(world)
    world.run(5000)
    assert logs(world) == [[b"a", b"x", b"z"]] * 2
    assert world.assignment().isr == (1, 2)
    assert any("gave up 1 offsets of t-0" in text for text in world.hosts[2].told)


def test_a_bumped_epoch_of_the_same_leader_is_reconciled_too() -> None:
    """Mistake 5 (KAFKA-7164): the leader lost its tail and leads again."""
    world = cluster(2)
    for value in (b"a", b"x", b"y"):
        world.produce(1, "t", batch(value))
        world.run(10)
    stall(world, 2)
    world.run(10)
    world.partition(1).truncate_to(1)
    world.elect(1, isr=(1,))
    world.run(10)
    world.produce(1, "t", batch(b"z"), acks=1)
    stall(world)
    world.run(5000)
    assert logs(world) == [[b"a", b"z"]] * 2


def test_hw_advances_after_a_full_truncation() -> None:
    """Mistake 8 (KAFKA-9491)."""
    world = cluster(2)
    stall(world, 2)
    world.produce(1, "t", batch(b"x"), acks=1)
    world.elect(2, isr=(2,))
    world.run(10)
    world.produce(2, "t", batch(b"y"), acks=1)
    stall(world)
    world.run_until(lambda: world.assignment().isr == (2, 1))
    world.run(4000)  # so long, at most, is waited for an answer that was lost
    assert logs(world) == [[b"y"]] * 2
    world.elect(1)
    world.run(20)
    answer = world.produce(1, "t", batch(b"z"))
    world.run(50)
    assert answer.partition.error == 0
    assert world.partition(1).high_watermark == 2


def test_fetches_of_another_epoch_or_life_are_fenced() -> None:
    """Mistakes 3 (KIP-320) and 6 (KIP-903), with Kafka's codes."""
    world = cluster()
    world.elect(1)
    world.run(20)
    stall(world, 2, 3)
    assert replica_fetch(world, 1, 2, leader_epoch=0).error == ErrorCode.FENCED_LEADER_EPOCH
    assert replica_fetch(world, 1, 2, leader_epoch=2).error == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert replica_fetch(world, 2, 3).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replica_fetch(world, 1, 9).error == ErrorCode.UNKNOWN_LEADER_EPOCH
    earlier_life = world.node(1).image.brokers[2].epoch - 1
    assert replica_fetch(world, 1, 2, replica_epoch=earlier_life).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replica_fetch(world, 1, 2).error == 0


def test_an_answer_from_before_a_partition_was_named_anew_does_not_count() -> None:
    """Mistake 3 (KIP-320): it would be taken for the answer under the new epoch."""
    world = cluster(2)
    world.produce(1, "t", batch(b"a"), acks=1)
    world.run(10)
    node, answers = world.node(2), list[Callable[[Any], None]]()
    send = node.call

    def hold(to: tuple[int, int, int], body: Any, timeout_ms: int, then: Callable[[Any], None]) -> None:
        if to[1] == ApiKey.FETCH:
            answers.append(then)
        else:
            send(to, body, timeout_ms, then)

    node.call = hold  # type: ignore[method-assign]
    world.produce(1, "t", batch(b"b"), acks=1)
    world.run(10)
    world.elect(1)
    world.run(10)
    assert len(answers) == 2, "one that waits, and one under the new epoch"
    late = bytearray(batch(b"never committed"))
    stamp(memoryview(late), parse_header(late, 0), 2, 0)
    result = FetchPartitionResult(0, 0, 0, -1, 0)
    result.records = FetchedRecords(memoryview(late))
    topic = FetchTopicResult(None, world.assignment().topic_id, [result])
    answers[0](FetchResponse(session_id=1, topics=[topic]))
    assert world.values(2) == [b"a", b"b"]
    answers[1](FetchResponse(session_id=1, topics=[topic]))
    assert world.values(2) == [b"a", b"b", b"never committed"], "as an answer to the second it would count"


def test_strangers_that_call_themselves_replicas_leave_nothing_behind() -> None:
    world = cluster()
    before = count_sessions()
    for number in range(100, 200):
        assert replica_fetch(world, 1, number).error == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert 0 < count_sessions() <= before


def count_sessions() -> int:
    """Return how many follower sessions are in memory, over all worlds."""
    gc.collect()
    return sum(isinstance(each, ReplicaSession) for each in gc.get_objects())


def test_a_life_that_the_journal_does_not_know_is_not_let_in() -> None:
    """Mistake 6 (KIP-903)."""
    world = cluster()
    stall(world, 3)
    world.produce(1, "t", batch(b"a"), acks=1)
    world.run_until(lambda: world.assignment().isr == (1, 2))
    epoch = world.node(1).image.brokers[3].epoch
    assert replica_fetch(world, 1, 3, 1, replica_epoch=epoch + 5).error == 0
    world.run(2000)
    assert world.assignment().isr == (1, 2)
    replica_fetch(world, 1, 3, 1)
    world.run(50)
    assert world.assignment().isr == (1, 2, 3)


def test_a_follower_joins_only_from_the_start_of_the_leaders_epoch() -> None:
    """Mistake 4: HW alone is not enough, a new leader's may be behind."""
    world = cluster()
    for value in (b"a", b"b", b"c"):
        world.produce(1, "t", batch(value))
        world.run(5)
    stall(world, 1, 2, 3)
    world.elect(2, isr=(2, 1))
    world.run(20)
    leader = world.partition(2)
    assert leader.high_watermark <= 2 < leader.epoch_start == 3
    replica_fetch(world, 2, 3, 2, last_epoch=0)
    world.run(100)
    assert world.assignment().isr == (2, 1)
    replica_fetch(world, 2, 3, 3, last_epoch=0)
    world.run(100)
    assert world.assignment().isr == (2, 1, 3)


def test_hw_never_goes_back_when_a_follower_does() -> None:
    """Mistake 14."""
    world = cluster(2)
    world.produce(1, "t", batch(b"a"))
    world.run(20)
    assert world.partition(1).high_watermark == 1
    stall(world, 2)
    replica_fetch(world, 1, 2, 0)
    assert world.partition(1).high_watermark == 1


def test_a_follower_far_behind_begins_where_the_leaders_log_does() -> None:
    world = cluster(2)
    stall(world, 2)
    for value in (b"a", b"b", b"c"):
        world.produce(1, "t", batch(value), acks=1)
    world.run_until(lambda: world.assignment().isr == (1,))
    world.run(20)
    world.partition(1).delete_records(2)
    stall(world)
    world.run(5000)
    assert world.partition(2).log.start_offset == 2
    assert logs(world) == [[b"c"]] * 2
    assert world.assignment().isr == (1, 2)


def test_a_follower_begins_inside_a_batch_if_the_leaders_log_does() -> None:
    """Records were deleted up to the middle of a batch, which the leader can only give as a whole."""
    world = cluster(2)
    stall(world, 2)
    world.produce(1, "t", batch(b"a", b"b", b"c"), acks=1)
    world.run_until(lambda: world.assignment().isr == (1,))
    world.run(20)
    world.partition(1).delete_records(2)
    stall(world)
    world.run(5000)
    assert world.partition(2).log.start_offset == 2
    assert ends(world) == [3, 3]
    assert world.assignment().isr == (1, 2)


def test_a_follower_starts_over_without_an_epoch_that_the_leader_has_forgotten() -> None:
    """It ends where the leader's log now begins, with an epoch of which the leader keeps nothing."""
    world = cluster(2)
    world.produce(1, "t", batch(b"a"))
    world.run(600)
    stall(world, 2)
    world.elect(1, isr=(1,))
    world.run(20)
    world.produce(1, "t", batch(b"b"), acks=1)
    world.run(20)
    world.partition(1).delete_records(1)
    stall(world)
    world.run(5000)
    assert world.partition(2).log.start_offset == 1
    assert logs(world) == [[b"b"]] * 2
    assert world.assignment().isr == (1, 2)


def test_a_consumer_goes_on_where_all_that_it_has_read_was_deleted() -> None:
    """Seed 3 of the simulator: the epoch of its last record is older than all that the leader knows."""
    world = cluster(2)
    world.produce(1, "t", batch(b"a"))
    world.run(20)
    world.elect(1)
    world.run(20)
    world.produce(1, "t", batch(b"b"))
    world.run(20)
    world.partition(1).delete_records(1)
    epoch = world.partition(1).leader_epoch
    wish = FetchPartition(0, epoch, 1, epoch - 1, -1, 1 << 20)
    body = FetchRequest(topics=[FetchTopic("t", None, [wish])])
    answer = world.send(1, ApiKey.FETCH, 12, body).partition
    assert (answer.error, answer.diverging_epoch) == (0, None)
    assert answer.records.size > 0


def test_a_follower_drops_what_the_leader_dropped() -> None:
    world = cluster(2)
    for value in (b"a", b"b"):
        world.produce(1, "t", batch(value))
    world.run(600)
    world.partition(1).delete_records(1)
    world.produce(1, "t", batch(b"c"))
    world.run(600)
    assert world.partition(2).log.start_offset == 1


def test_gaps_that_compaction_left_are_copied_as_empty_batches() -> None:
    world = cluster(2, cleanup_policy="compact", segment_bytes="1024")
    stall(world, 2)
    for value in range(6):
        world.produce(1, "t", build_batch([(1_000_000, b"k", str(value).encode() * 400)]), acks=1)
    world.run_until(lambda: world.assignment().isr == (1,))
    world.run(20)
    log = world.partition(1).log
    cleaning = log.begin_cleaning(CleaningPlan(log.end_offset, (), world.now_ms, 0, 1000))
    assert cleaning is not None
    while not cleaning.step():
        pass
    assert len(world.values(1)) < 6
    stall(world)
    world.run(5000)
    assert logs(world)[0] == logs(world)[1]
    assert ends(world) == [6, 6]


def test_a_replica_that_was_taken_away_is_deleted() -> None:
    world = cluster()
    world.produce(1, "t", batch(b"a"))
    world.run(20)
    world.change(replicas=(1, 2), isr=(1, 2))
    world.run(20)
    assert TopicPartition("t", 0) not in world.node(3).partitions
    assert ("t", 0) not in world.hosts[3].store.logs
    answer = world.produce(1, "t", batch(b"b"))
    world.run(20)
    assert answer.partition.error == 0
