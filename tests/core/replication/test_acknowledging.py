"""When a write counts: the in-sync set, its floor, and the high watermark (B3, B4, B5, C3, D1, D2, D3)."""

from __future__ import annotations

from typing import Any

from gapless.core.producers import SETTLING_MS
from gapless.wire.apis import ApiKey
from gapless.wire.errors import ErrorCode
from gapless.wire.messages import ListOffsetsRequest
from gapless.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from tests.core.cluster_harness import ClusterWorld
from tests.core.harness import batch
from tests.core.replication.scenes import TIMES, cluster, ends, latest_offset, stall


def test_acks_all_waits_for_every_member_in_sync() -> None:
    """B3, and mistake 15: not for some of them."""
    world = cluster()
    stall(world, 3)
    answer = world.produce(1, "t", batch(b"a"), timeout_ms=10_000)
    world.run(600)
    assert ends(world) == [1, 1, 0]
    assert not answer.done
    world.run_until(lambda: answer.done)
    assert answer.partition.error == 0
    assert world.assignment().isr == (1, 2)


def test_acks_one_does_not_wait() -> None:
    world = cluster()
    stall(world, 2, 3)
    assert world.produce(1, "t", batch(b"a"), acks=1).partition.error == 0


def test_a_follower_leaves_when_it_lags_and_returns_when_it_caught_up() -> None:
    """B5."""
    world = cluster()
    stall(world, 3)
    world.produce(1, "t", batch(b"a"), acks=1)
    world.run(1500)
    assert world.assignment().isr == (1, 2, 3)
    world.run_until(lambda: world.assignment().isr == (1, 2))
    stall(world)
    world.run_until(lambda: world.assignment().isr == (1, 2, 3))
    assert world.values(3) == [b"a"]


def test_a_follower_without_news_stays_in_sync() -> None:
    world = cluster()
    world.produce(1, "t", batch(b"a"))
    world.run(20_000)
    world.produce(1, "t", batch(b"b"))
    world.run(3000)
    assert world.assignment().partition_epoch == 0


def test_alone_in_sync_acks_all_is_no_better_than_one() -> None:
    """B4."""
    world = cluster()
    stall(world, 2, 3)
    world.produce(1, "t", batch(b"a"), acks=1)
    world.run_until(lambda: world.assignment().isr == (1,))
    world.run(20)
    assert world.produce(1, "t", batch(b"b")).partition.error == 0
    assert ends(world) == [2, 0, 0]


def test_below_the_floor_writes_are_refused_before_and_after_the_append() -> None:
    """B4, and mistake 16."""
    world = cluster(min_insync_replicas="2")
    stall(world, 2, 3)
    waiting = world.produce(1, "t", batch(b"a"), timeout_ms=60_000)
    world.run_until(lambda: world.assignment().isr == (1,))
    world.run(20)
    assert waiting.partition.error == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    refused = world.produce(1, "t", batch(b"b"))
    assert refused.partition.error == ErrorCode.NOT_ENOUGH_REPLICAS
    assert ends(world) == [1, 0, 0]
    assert world.assignment().eligible == (2, 3)


def test_the_high_watermark_stands_still_below_the_floor() -> None:
    """Mistake 20 (KIP-966)."""
    world = cluster(min_insync_replicas="2")
    stall(world, 2, 3)
    world.produce(1, "t", batch(b"a"), acks=1)
    world.run_until(lambda: world.assignment().isr == (1,))
    assert world.produce(1, "t", batch(b"b"), acks=1).partition.error == 0
    world.run(100)
    assert world.partition(1).high_watermark == 0
    stall(world)
    world.run_until(lambda: world.partition(1).high_watermark == 2)
    assert len(world.assignment().isr) >= 2


def test_hw_is_the_smallest_end_in_sync_and_not_of_all_replicas() -> None:
    """D3: a replica out of sync does not count; consumers see nothing above HW."""
    world = cluster()
    stall(world, 3)
    first = world.produce(1, "t", batch(b"a"), timeout_ms=60_000)
    world.run(500)
    assert world.partition(1).high_watermark == 0
    assert world.consume(1, "t").partition.records.size == 0
    world.run_until(lambda: first.done)
    assert world.partition(1).high_watermark == 1
    assert world.partition(3).log.end_offset == 0
    assert world.consume(1, "t").partition.records.size > 0


def test_hw_counts_a_member_whose_addition_is_under_way() -> None:
    """Mistake 19 (KIP-497): the proposal may be in the journal before the leader knows."""
    world = cluster()
    stall(world, 3)
    world.produce(1, "t", batch(b"a"), acks=1)
    world.run_until(lambda: world.assignment().isr == (1, 2))
    world.run(20)
    world.journal.held[1] = True
    stall(world)
    world.run_until(lambda: world.hosts[1].proposing is not None)
    stall(world, 3)
    world.run(20)
    end = world.partition(3).log.end_offset
    answer = world.produce(1, "t", batch(b"b"), timeout_ms=60_000)
    world.run(500)
    assert world.partition(2).log.end_offset == 2
    assert world.partition(1).high_watermark == end == 1
    assert not answer.done
    world.journal.release(1)
    world.run(20)
    assert world.assignment().isr == (1, 2, 3)
    assert not answer.done


def test_leadership_lost_while_waiting_is_told() -> None:
    world = cluster()
    stall(world, 2, 3)
    answer = world.produce(1, "t", batch(b"a"), timeout_ms=60_000)
    world.elect(2)
    world.run(20)
    assert answer.partition.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_resend_after_the_leaders_death_is_doubled_unless_idempotent() -> None:
    """C3, and mistake 17: the sequences of producers are known to every replica."""
    world = cluster()
    plain, numbered = batch(b"plain"), batch(b"numbered", producer=(7, 0), sequence=0)
    for payload in (plain, numbered):
        world.produce(1, "t", payload)
    world.run(20)
    world.crash(1)
    world.run_until(lambda: world.assignment().leader != 1)
    world.run(20)
    leader = world.assignment().leader
    for payload in (plain, numbered):
        answer = world.produce(leader, "t", payload)
        world.run(600)
        assert answer.partition.error == 0
    assert world.values(leader) == [b"plain", b"numbered", b"plain"]


def test_followers_copy_what_is_in_the_page_cache_unless_told_otherwise() -> None:
    """D2: both orders."""
    world = cluster()
    world.hold_flushes[1] = True
    world.produce(1, "t", batch(b"a"))
    world.run(50)
    assert ends(world) == [1, 1, 1]
    assert world.partition(1).flushed_offset == 0
    strict = cluster(gapless_replicate_flushed_only="true")
    strict.hold_flushes[1] = True
    answer = strict.produce(1, "t", batch(b"a"), timeout_ms=60_000)
    strict.run(1000)
    assert ends(strict) == [1, 0, 0]
    strict.hold_flushes[1] = False
    strict.run(50)
    assert ends(strict) == [1, 1, 1]
    assert answer.partition.error == 0


def test_flushed_before_acknowledged_means_on_every_member() -> None:
    """D1: a follower counts with what it has flushed."""
    world = cluster(flush_messages="1")
    world.hold_flushes[2] = True
    answer = world.produce(1, "t", batch(b"a"), timeout_ms=60_000)
    world.run(500)
    assert ends(world) == [1, 1, 1]
    assert not answer.done
    world.hold_flushes[2] = False
    world.run(50)
    assert answer.partition.error == 0
    for node_id in world.hosts:
        world.power_cut(node_id, noticed=False)
    for node_id in world.hosts:
        world.start(node_id, keeps_all=False)
    world.run(3000)
    assert [world.values(node_id) for node_id in world.hosts] == [[b"a"]] * 3


def test_a_new_leader_does_not_tell_an_end_that_it_does_not_know() -> None:
    """KIP-207: the end that consumers know must not go back."""
    world = cluster()
    world.produce(1, "t", batch(b"a"))
    world.run(10)
    assert world.partition(2).high_watermark == 0
    stall(world, 1, 3)
    world.elect(2)
    world.run(20)
    assert latest_offset(world, 2).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    stall(world)
    world.run_until(lambda: latest_offset(world, 2).error_code == 0)
    assert latest_offset(world, 2).offset == 1


def test_a_new_leader_takes_a_gap_for_a_batch_on_its_way_and_later_for_what_it_is() -> None:
    """C5: librdkafka sends the next batch to a new leader before the one that the old leader refused."""
    world = cluster()
    world.produce(1, "t", batch(b"a", producer=(5, 0), sequence=0))
    world.run(50)
    world.elect(2)
    world.run(20)
    early = world.produce(2, "t", batch(b"c", producer=(5, 0), sequence=2))
    assert early.partition.error == ErrorCode.NOT_ENOUGH_REPLICAS
    world.run(SETTLING_MS)
    late = world.produce(2, "t", batch(b"c", producer=(5, 0), sequence=2))
    assert late.partition.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_tools_may_look_at_followers() -> None:
    """D4: a debugging replica is told where any replica's log ends, and what it knows to be committed."""
    world = cluster()
    world.produce(1, "t", batch(b"a"))
    world.run(600)
    asked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=-1
    )
    topics = [ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[asked])]

    def end(replica_id: int) -> Any:
        body = ListOffsetsRequest(replica_id=replica_id, isolation_level=0, topics=topics)
        return world.send(2, ApiKey.LIST_OFFSETS, 9, body).message.topics[0].partitions[0]

    assert (end(-2).error_code, end(-2).offset) == (0, 1)
    assert end(-1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.consume(2, "t", 1, replica_id=-2, max_wait_ms=0).partition.high_watermark == 1
    assert world.consume(2, "t", 1).partition.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_that_catches_up_while_another_is_being_written_down_joins_too() -> None:
    """The journal is slow; what a leader wishes after it has decided is not lost with the decision."""
    world = cluster()
    for topic, isr in (("first", (1, 2)), ("second", (1, 3))):
        world.create_topic(topic)
        world.change(topic, isr=isr)
    world.run(50)
    world.journal.latency_ms = lambda: 40
    world.network.slower_ms[2, 1] = 20
    for topic in ("first", "second"):
        world.produce(1, topic, batch(b"x"))
    world.run(300)  # it is less than a second until the leader looks at all partitions
    assert set(world.assignment("first").isr) == set(world.assignment("second").isr) == {1, 2, 3}


def test_batches_larger_than_a_fetch_are_copied_one_at_a_time() -> None:
    """A batch that does not fit into an answer is in the next one, though nothing new happens meanwhile."""
    world = ClusterWorld(2, replica_fetch_max_bytes="100", **TIMES)
    topics = ("t", "u", "v")
    for topic in topics:
        world.create_topic(topic, replicas=(1, 2))
    world.run(20)
    wanted = [
        ProduceTopic(topic, None, [ProducePartition(0, memoryview(bytearray(batch(b"." * 1000))))])
        for topic in topics
    ]
    answer = world.send(1, ApiKey.PRODUCE, 11, ProduceRequest(None, -1, 10_000, wanted))
    world.run_until(lambda: answer.done, 1000)
    assert [world.values(2, topic) for topic in topics] == [[b"." * 1000]] * 3
