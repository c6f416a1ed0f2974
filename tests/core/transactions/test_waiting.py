"""What the coordinator waits for, and in which order it goes on."""

from __future__ import annotations

import pytest

from gapless.core import shard
from gapless.core.contract import Tick, TopicPartition
from gapless.core.timers import Timers
from gapless.core.watches import Watches
from tests.core.transactions.actors import Transactor, known, make_world

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_watches_go_on_in_the_order_in_which_they_were_set() -> None:
    watches, done = Watches(), list[int]()
    high_watermark = 0

    def watch(offset: int) -> None:
        def look() -> bool:
            if high_watermark < offset:
                return False
            done.append(offset)
            return True

        watches.add(HERE, look)

    watch(0)
    assert done == [0]
    for offset in (1, 2, 3):
        watch(offset)
    high_watermark = 2
    watch(2)  # it is ready, but others came before it
    assert done == [0]
    watches.touched(THERE)
    assert done == [0]
    watches.touched(HERE)
    assert done == [0, 1, 2, 2]
    high_watermark = 3
    watches.touched(HERE)
    assert done == [0, 1, 2, 2, 3]
    assert len(watches) == 0


def test_a_watch_that_is_set_while_others_go_on_is_not_forgotten() -> None:
    watches, done, is_ready = Watches(), list[str](), False

    def first() -> bool:
        if is_ready:
            done.append("first")
            watches.add(HERE, second)
        return is_ready

    def second() -> bool:
        done.append("second")
        return True

    watches.add(HERE, first)
    is_ready = True
    watches.touched(HERE)
    assert done == ["first", "second"]
    assert len(watches) == 0


def test_a_timer_that_sets_another_for_now_lets_others_have_their_turn() -> None:
    timers, done = Timers(), list[int]()

    def slice_of_work() -> None:
        done.append(len(done))
        timers.at(10, slice_of_work)

    timers.at(10, slice_of_work)
    for turn in range(3):
        assert timers.next_due() == 10
        timers.run_due(10)
        assert done == list(range(turn + 1))


def test_transactions_are_read_back_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(transaction_state_log_num_partitions="1")
    for number in range(50):
        Transactor(world, f"id-{number}", newer=True).init()
    monkeypatch.setattr(shard, "LOAD_SLICE_BYTES", 1000)
    world.restart()
    ticks = 0
    while known(world, "id-49") is None:
        world.step(Tick())
        ticks += 1
    assert ticks > 5
