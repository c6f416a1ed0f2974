"""What every store promises (claims E6, E7), asked of each of them with the same words."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gapless.client.records import Record
from gapless.client.stores.port import Applied, HandlerFailed, PartitionTaken
from gapless.errors import UsageError
from tests.client.stores.conftest import OpenStores
from tests.client.stores.kits import FIRST, GROUP, SECOND, Kit, record, records


def bodies(sequences: range | list[int], source: str = "shop") -> list[bytes]:
    return [f"{source}:{sequence}".encode() for sequence in sequences]


def test_new_records_are_handled_in_their_order(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store())
    assert store.take(FIRST) is None
    assert store.apply(FIRST, records(range(10)), kit.handler) == Applied(10, 0)
    assert store.apply(FIRST, [], kit.handler) == Applied(0, 0)
    assert kit.effects() == bodies(range(10))


def test_a_record_that_stands_in_the_log_twice_acts_once(kit: Kit, opened: OpenStores) -> None:
    """E6: a producer sent it again, so it has another offset and the same identity."""
    store = opened(kit.store())
    store.take(FIRST)
    assert store.apply(FIRST, records([0, 1, 0, 2, 2]), kit.handler) == Applied(3, 2)
    assert store.apply(FIRST, records([1, 3, 0, 4], at=5), kit.handler) == Applied(2, 2)
    assert kit.effects() == bodies(range(5))


def test_rewinding_delivers_again_and_does_not_act_again(kit: Kit, opened: OpenStores) -> None:
    """E7."""
    store = opened(kit.store())
    store.take(FIRST)
    both = [*records(range(5)), record(5), record(6)]
    assert store.apply(FIRST, both, kit.handler) == Applied(7, 0)
    assert store.apply(FIRST, both, kit.handler) == Applied(0, 7)
    assert store.apply(FIRST, [*both[3:], record(7)], kit.handler) == Applied(1, 4)
    assert kit.effects() == [*bodies(range(5)), *bodies(range(5, 8))]


def test_another_process_goes_on_where_the_first_ended(kit: Kit, opened: OpenStores) -> None:
    first = opened(kit.store())
    first.take(FIRST)
    first.apply(FIRST, records(range(5)), kit.handler)
    first.close()
    second = opened(kit.store())
    assert second.take(FIRST) == (5 if second.keeps_offsets else None)
    assert second.apply(FIRST, records(range(8)), kit.handler) == Applied(3, 5)
    assert second.apply(FIRST, records([2, 8], at=8), kit.handler) == Applied(1, 1)
    assert kit.effects() == bodies(range(9))


def test_marks_of_a_source_become_one_interval(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store())
    store.take(FIRST)
    store.apply(FIRST, records([0, 1, 2, 10, 11, 5]), kit.handler)
    assert kit.marks() == [(0, 2), (5, 5), (10, 11)]
    store.apply(FIRST, records([4, 6, 3, 9], at=6), kit.handler)
    assert kit.marks() == [(0, 6), (9, 11)]
    store.apply(FIRST, records([7, 8], at=10), kit.handler)
    assert kit.marks() == [(0, 11)]


def test_sources_incarnations_partitions_and_groups_are_apart(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store())
    store.take(FIRST)
    store.take(SECOND)
    assert store.apply(FIRST, [record(0, 0), record(1, 0, source="web")], kit.handler).handled == 2
    assert store.apply(FIRST, [record(2, 0, incarnation=b"anotherr")], kit.handler).handled == 1
    assert store.apply(SECOND, [record(0, 0, partition=SECOND)], kit.handler).handled == 1
    other = kit.store()
    other.open("shipping")
    try:
        other.take(FIRST)
        assert other.apply(FIRST, [record(0, 0)], kit.handler).handled == 1
    finally:
        other.close()


def test_a_skipped_record_is_done(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store())
    store.take(FIRST)
    store.skip(FIRST, record(0, 0))
    store.skip(FIRST, record(0, 0))
    assert store.apply(FIRST, records([0, 1, 0]), kit.handler) == Applied(1, 2)
    assert kit.effects() == bodies([1])


def test_a_failed_record_is_as_if_it_had_never_come(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store())
    store.take(FIRST)
    batch = records(range(6))

    def fails_at_3(each: Record, transaction: Any) -> None:
        kit.handler(each, transaction) if each.offset != 3 else 1 / 0

    failures: list[HandlerFailed] = []
    for _ in range(2):
        with pytest.raises(HandlerFailed) as failed:
            store.apply(FIRST, batch, fails_at_3)
        failures.append(failed.value)
    assert [failure.record for failure in failures] == [batch[3]] * 2
    assert all(isinstance(failure.cause, ZeroDivisionError) for failure in failures)
    if store.keeps_offsets:
        assert [failure.applied for failure in failures] == [Applied(0, 0)] * 2
        assert kit.effects() == []
        assert kit.marks() == []
    else:
        assert [failure.applied for failure in failures] == [Applied(3, 0), Applied(0, 3)]
    store.apply(FIRST, batch, kit.handler)
    assert kit.effects() == bodies(range(6))


def test_who_took_the_partition_last_has_it(kit: Kit, opened: OpenStores) -> None:
    zombie, successor = opened(kit.store()), opened(kit.store())
    zombie.take(FIRST)
    zombie.apply(FIRST, records(range(3)), kit.handler)
    successor.take(FIRST)
    for _ in range(2):
        with pytest.raises(PartitionTaken, match="group billing has taken orders-0"):
            zombie.apply(FIRST, records([3], at=3), kit.handler)
    with pytest.raises(PartitionTaken):
        zombie.skip(FIRST, record(3, 3))
    assert successor.apply(FIRST, records([3, 4], at=3), kit.handler) == Applied(2, 0)
    assert kit.effects() == bodies(range(5))
    zombie.take(FIRST)
    assert zombie.apply(FIRST, records([3, 4, 5], at=3), kit.handler) == Applied(1, 2)
    with pytest.raises(PartitionTaken):
        successor.apply(FIRST, records([6], at=6), kit.handler)
    assert kit.effects() == bodies(range(6))


def test_a_partition_must_be_taken_first_and_not_be_released(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store())
    with pytest.raises(PartitionTaken, match="take"):
        store.apply(FIRST, records([0]), kit.handler)
    store.take(FIRST)
    store.release(FIRST)
    store.release(FIRST)
    with pytest.raises(PartitionTaken, match="take"):
        store.apply(FIRST, records([0]), kit.handler)


def test_a_store_that_is_not_open_says_so(kit: Kit) -> None:
    store = kit.store()
    with pytest.raises(UsageError, match="not open"):
        store.take(FIRST)
    store.close()


def test_a_store_serves_one_group_at_a_time(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store())
    store.take(FIRST)
    with pytest.raises(UsageError, match=r"open for group 'billing', and group 'shipping' .* of its own"):
        store.open("shipping")
    assert store.apply(FIRST, records(range(3)), kit.handler) == Applied(3, 0)
    store.close()
    store.open("shipping")
    store.take(FIRST)
    assert store.apply(FIRST, records(range(4)), kit.handler) == Applied(4, 0)


def test_members_of_a_group_may_share_a_store(kit: Kit, opened: OpenStores) -> None:
    """Who closes it first takes nothing from the others."""
    store = opened(kit.store())
    store.open(GROUP)
    store.take(FIRST)
    store.take(SECOND)
    store.release(SECOND)
    store.close()
    assert store.apply(FIRST, records(range(3)), kit.handler) == Applied(3, 0)


def test_partitions_are_worked_on_in_parallel(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store())
    partitions = [FIRST._replace(partition=number) for number in range(4)]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            partition = partitions[number]
            store.take(partition)
            for at in range(0, 60, 6):
                batch = records(range(at, at + 6), at=at, partition=partition)
                assert store.apply(partition, batch, kit.handler) == Applied(6, 0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(kit.effects()) == sorted(bodies(list(range(60)) * 4))
    assert kit.marks() == [(0, 59)] * 4


def test_keys_of_the_users_choice_tell_records_apart(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store(dedup_by=lambda each: each.key))
    store.take(FIRST)
    store.take(SECOND)
    batch = [record(0, key=b"a"), record(1, key=b"b"), record(2, key=b"a"), record(3), record(4)]
    assert store.apply(FIRST, batch, kit.handler) == Applied(4, 1)
    elsewhere = [record(0, key=b"b", partition=SECOND), record(1, key=b"c", partition=SECOND)]
    assert store.apply(SECOND, elsewhere, kit.handler) == Applied(1, 1)
    store.skip(FIRST, record(5, key=b"d"))
    assert store.apply(FIRST, [record(6, key=b"d")], kit.handler) == Applied(0, 1)
    assert kit.effects() == bodies([0, 1, 3, 4, 1])


def test_a_key_that_cannot_be_made_is_the_records_failure(kit: Kit, opened: OpenStores) -> None:
    store = opened(kit.store(dedup_by=lambda each: (each.value or b"").split(b"?")[each.offset]))
    store.take(FIRST)
    with pytest.raises(HandlerFailed) as failed:
        store.apply(FIRST, [record(0), record(1)], kit.handler)
    assert failed.value.record.offset == 1
    assert isinstance(failed.value.cause, IndexError)


@pytest.mark.parametrize("key", ["text", 7, bytearray(b"array")])
def test_a_key_that_is_not_bytes_is_refused_and_nothing_passes_for_done(
    kit: Kit, opened: OpenStores, key: object
) -> None:
    is_right = False

    def own_key(each: Record) -> Any:
        return f"{each.offset}".encode() if is_right or each.offset < 2 else key

    store = opened(kit.store(dedup_by=own_key))
    store.take(FIRST)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"gave .* for orders-0 offset 2: return bytes .* or None"):
            store.apply(FIRST, [record(0), record(1), record(2)], kit.handler)
    with pytest.raises(UsageError, match="return bytes"):
        store.skip(FIRST, record(2))
    is_right = True
    successor = opened(kit.store(dedup_by=own_key))
    successor.take(FIRST)
    successor.apply(FIRST, [record(offset) for offset in range(4)], kit.handler)
    assert kit.effects() == bodies(range(4))


def test_settings_that_cannot_be_are_refused(kit: Kit) -> None:
    with pytest.raises(UsageError, match="dedup_by='key' is unknown"):
        kit.store(dedup_by="key")
    with pytest.raises(UsageError, match="dedup_by=7 is unknown"):
        kit.store(dedup_by=7)
