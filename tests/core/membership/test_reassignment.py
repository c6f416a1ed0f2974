"""Partitions move to other brokers, and back, whoever dies meanwhile (A6): the rule as a function."""

from __future__ import annotations

from gapless.core.membership.decisions import fence
from gapless.core.membership.elections import Policy
from gapless.core.membership.reassignment import begin, cancel, finish, finish_all, is_finished
from tests.core.membership.shapes import after, image, partition, under

POLICY = Policy(2)


def everybody(_node_id: int) -> bool:
    return True


def test_the_target_comes_first_and_what_goes_stays_until_the_end() -> None:
    moving = begin(partition(1, (1, 2, 3)), (4, 3, 5), everybody, POLICY)
    assert moving is not None
    assert moving.replicas == (4, 3, 5, 1, 2)
    assert (moving.adding, moving.removing) == ((4, 5), (1, 2))
    assert (moving.leader, moving.isr) == (1, (1, 2, 3))
    assert (moving.leader_epoch, moving.partition_epoch) == (4, 10)
    assert not is_finished(moving)
    assert finish(moving, everybody, POLICY) is None


def test_it_is_over_when_all_of_the_target_is_in_sync() -> None:
    moving = partition(1, (1, 2, 3, 4, 5), (), (4, 3, 5, 1, 2), adding=(4, 5), removing=(1, 2))
    done = finish(moving, everybody, POLICY)
    assert done is not None
    assert (done.replicas, done.isr, done.adding, done.removing) == ((4, 3, 5), (3, 4, 5), (), ())
    assert (done.leader, done.leader_epoch) == (4, 5)


def test_fewer_replicas_or_another_order_need_no_waiting() -> None:
    fewer = begin(partition(1, (1, 2, 3)), (2, 3), everybody, POLICY)
    assert fewer is not None
    assert (fewer.replicas, fewer.isr, fewer.leader, fewer.removing) == ((2, 3), (2, 3), 2, ())
    order = begin(partition(1, (1, 2, 3)), (3, 1, 2), everybody, POLICY)
    assert order is not None
    assert (order.replicas, order.leader, order.leader_epoch) == ((3, 1, 2), 1, 4)
    assert begin(partition(1, (1, 2, 3)), (1, 2, 3), everybody, POLICY) is None


def test_cancelled_it_goes_back() -> None:
    moving = partition(4, (1, 4), (), (4, 5, 1, 2), adding=(4, 5), removing=(1, 2))
    back = cancel(moving, everybody, POLICY)
    assert back is not None
    assert (back.replicas, back.isr, back.leader) == ((1, 2), (1,), 1)
    assert back.leader_epoch == 5


def test_it_cannot_be_cancelled_if_only_the_new_replicas_are_in_sync() -> None:
    moving = partition(4, (4, 5), (), (4, 5, 1, 2), adding=(4, 5), removing=(1, 2))
    assert cancel(moving, everybody, POLICY) is None


def test_another_target_replaces_the_first() -> None:
    moving = begin(partition(1, (1, 2, 3)), (4, 5, 6), everybody, POLICY)
    assert moving is not None
    other = begin(moving, (1, 2, 4), everybody, POLICY)
    assert other is not None
    assert (other.replicas, other.adding, other.removing) == ((1, 2, 4, 3), (4,), (3,))
    back = begin(other, (1, 2, 3), everybody, POLICY)
    assert back is not None
    assert (back.replicas, back.adding, back.removing, back.isr) == ((1, 2, 3), (), (), (1, 2, 3))


def test_a_death_on_the_way_elects_in_sync_and_finishes_later() -> None:
    moving = partition(1, (1, 2), (), (4, 5, 1, 2), adding=(4, 5), removing=(1, 2))
    start = image(moving, live=(1, 2, 4, 5))
    died = after(start, fence(start, under(2), (1,)).records)
    assert (died.leader, died.isr, died.eligible) == (2, (2,), (1,))
    assert (died.adding, died.removing) == ((4, 5), (1, 2))
    assert finish_all(start, under(2)).records == []
    start.replay(partition(2, (2, 4, 5), (), (4, 5, 1, 2), adding=(4, 5), removing=(1, 2)))
    done = after(start, finish_all(start, under(2)).records)
    assert (done.replicas, done.isr, done.leader) == ((4, 5), (4, 5), 4)
