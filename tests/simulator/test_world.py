"""The world that nodes live in: connections keep order, ways can be blocked, clocks differ, power fails."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from gapless.core.contract import InvariantViolated, Request, TopicPartition
from gapless.core.log import LogConfig
from gapless.core.records import TopicCreated
from gapless.simulator.world import World
from gapless.wire.apis import ApiKey
from gapless.wire.batch import BatchHeader, parse_header
from gapless.wire.messages import ApiVersionsRequest
from gapless.wire.records import build_batch
from gapless.wire.request import RequestHeader

CLIENT = 1_001
TOPIC_ID = UUID(int=5)
CONFIG = LogConfig(
    segment_bytes=1 << 20, segment_ms=1 << 40, index_interval_bytes=4096, file_delete_delay_ms=0
)
PING = ApiVersionsRequest(client_software_name="test", client_software_version="1")


class Asking:
    """A client that asks for versions, and notes when which answer came."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: list[tuple[int, int, bool]] = []
        """What number was answered, when, and whether there was an answer."""

    def ask(self, number: int, broker: int = 1, *, timeout_ms: int = 500) -> None:
        def then(message: Any) -> None:
            self.answers.append((number, self.world.now_ms, message is not None))

        header = RequestHeader(int(ApiKey.API_VERSIONS), 3, number, "test")
        self.world.network.ask((CLIENT, broker), None, header, PING, timeout_ms, then)

    @property
    def numbers(self) -> list[tuple[int, bool]]:
        return [(number, answered) for number, _, answered in self.answers]


@pytest.fixture
def world() -> World:
    return World(2)


@pytest.fixture
def client(world: World) -> Asking:
    return Asking(world)


def arrivals(world: World) -> list[int]:
    """The numbers of a client's requests, in the order in which they reach a node."""
    seen: list[int] = []

    def note(_node_id: int, event: Any) -> None:
        if isinstance(event, Request) and event.header.client_id == "test":
            seen.append(event.header.correlation_id)

    world.on_event = note
    return seen


def test_requests_and_answers_of_one_connection_keep_their_order(world: World, client: Asking) -> None:
    delays = iter((9, 1, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1))
    world.network.latency_ms = lambda: next(delays, 1)
    seen = arrivals(world)
    for number in range(3):
        client.ask(number)
    world.run(100)
    assert seen == [0, 1, 2]
    assert client.numbers == [(0, True), (1, True), (2, True)]


def test_what_is_sent_on_a_blocked_way_arrives_when_it_is_open_again(world: World, client: Asking) -> None:
    seen = arrivals(world)
    world.network.block(CLIENT, 1)
    client.ask(1, timeout_ms=50)
    world.run(100)
    assert (seen, client.numbers) == ([], [(1, False)])
    world.network.open(CLIENT, 1)
    world.run(10)
    assert seen == [1]  # nobody waits for it any more, and it happens all the same
    assert client.numbers == [(1, False)]


def test_one_direction_may_be_blocked_alone(world: World, client: Asking) -> None:
    seen = arrivals(world)
    world.network.block(1, CLIENT)
    client.ask(1, timeout_ms=50)
    world.run(100)
    assert (seen, client.numbers) == ([1], [(1, False)])


def test_a_lost_message_leaves_its_connection_stuck_until_somebody_gives_up(
    world: World, client: Asking
) -> None:
    seen = arrivals(world)
    world.network.losing[CLIENT, 1] = 1
    client.ask(1, timeout_ms=50)
    client.ask(2, timeout_ms=200)
    world.run(100)
    assert (seen, client.numbers) == ([], [(1, False), (2, False)])
    client.ask(3)
    world.run(10)
    assert (seen, client.numbers[-1]) == ([3], (3, True))


def test_a_stranded_request_arrives_after_its_repetition(world: World, client: Asking) -> None:
    seen = arrivals(world)
    world.network.stranding[CLIENT, 1] = 80
    client.ask(1)
    world.run(40)
    assert client.numbers == [(1, False)]
    client.ask(2)
    world.run(100)
    assert seen == [2, 1]
    assert client.numbers == [(1, False), (2, True)]


def test_who_talks_with_a_dead_process_is_told(world: World, client: Asking) -> None:
    world.pause(1)
    client.ask(1, timeout_ms=10_000)
    world.run(20)
    world.crash(1)
    world.run(20)
    client.ask(2, timeout_ms=10_000)
    world.run(20)
    assert client.numbers == [(1, False), (2, False)]


def test_a_paused_process_answers_when_it_goes_on(world: World, client: Asking) -> None:
    world.pause(1)
    client.ask(1)
    world.run(100)
    assert client.answers == []
    world.resume(1)
    world.run(10)
    assert client.numbers == [(1, True)]


def test_a_slow_way_is_overtaken_by_another(world: World, client: Asking) -> None:
    world.network.slower_ms[CLIENT, 1] = 50
    client.ask(1)
    client.ask(2, broker=2)
    world.run(100)
    assert client.numbers == [(2, True), (1, True)]


def test_each_node_has_its_own_clock(world: World) -> None:
    world.hosts[2].clock_ahead_ms = 5_000
    world.run(3_000)
    assert world.node(2).now_ms - world.node(1).now_ms > 3_000
    assert world.now_ms >= world.node(1).now_ms


def test_a_power_cut_takes_what_was_not_flushed_and_the_next_life_knows(world: World) -> None:
    log = world.hosts[1].store.open("x", TOPIC_ID, 0, CONFIG)
    log.append(*_batch(0))
    job = log.prepare_flush()
    assert job is not None
    log.flushed(job)
    log.append(*_batch(1))
    assert log.end_offset == 2
    world.power_cut(1)
    assert world.hosts[1].keeps_all is False
    assert world.hosts[1].store.open("x", TOPIC_ID, 0, CONFIG).end_offset == 1


def test_a_killed_process_leaves_its_page_cache(world: World) -> None:
    log = world.hosts[1].store.open("x", TOPIC_ID, 0, CONFIG)
    log.append(*_batch(0))
    world.crash(1)
    assert world.hosts[1].keeps_all is True
    assert world.hosts[1].store.open("x", TOPIC_ID, 0, CONFIG).end_offset == 1


def test_time_passes_only_as_far_as_something_happens(world: World) -> None:
    done: list[int] = []
    world.after(500, lambda: done.append(world.now_ms))
    start_ms = world.now_ms
    world.run_until(lambda: bool(done))
    assert done == [start_ms + 500]


def test_waiting_for_what_never_comes_is_said(world: World) -> None:
    with pytest.raises(AssertionError, match="within 300 ms"):
        world.run_until(lambda: False, 300)


def test_the_journal_knows_the_cluster_before_anybody_has_heard_of_it(world: World) -> None:
    world.journal.held[1] = world.journal.held[2] = True
    brokers = dict(world.journal.image.brokers)
    assert sorted(brokers) == [1, 2]
    world.append(TopicCreated("x", TOPIC_ID))
    assert "x" in world.journal.image.topics
    world.run(50)
    assert "x" not in world.node(1).image.topics
    world.journal.release(1)
    world.run(10)
    assert "x" in world.node(1).image.topics
    assert TopicPartition("x", 0) not in world.node(1).partitions


def _batch(offset: int) -> tuple[list[BatchHeader], memoryview]:
    data = build_batch([(1_000_000, None, b"x")], base_offset=offset, leader_epoch=0)
    return [parse_header(data, 0)], memoryview(data)


def test_time_that_stands_still_is_an_error_and_no_endless_run(world: World) -> None:
    def again() -> None:
        world.after(0, again)

    again()
    with pytest.raises(InvariantViolated, match="time stands still"):
        world.run(10)
