"""What is Redis's own: records in doubt, leases, and the ways in which it forgets."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gapless.client.records import Record
from gapless.client.stores.port import Applied, HandlerFailed, PartitionTaken, StoreUnavailable
from gapless.errors import UsageError
from gapless.testing.redis import Redis
from tests.client.stores.conftest import OpenStores
from tests.client.stores.kits import FIRST, GROUP, RedisKit, record, records


class CutOff(BaseException):
    """Ends a handler as a SIGKILL would: nobody catches it."""


def cut_off(_record: Record, _transaction: Any) -> None:
    raise CutOff


def left_in_doubt(kit: RedisKit, opened: OpenStores, **options: Any) -> None:
    """Records 0 and 1 are done; 2 was begun, and whoever did it is gone."""
    store = opened(kit.store(**options))
    store.take(FIRST)
    store.apply(FIRST, records(range(2)), kit.handler)
    with pytest.raises(CutOff):
        store.apply(FIRST, records([2], at=2), cut_off)


@pytest.mark.parametrize(
    ("in_doubt", "applied"), [("redo", Applied(2, 2)), ("skip", Applied(1, 3))], ids=["redo", "skip"]
)
def test_a_record_in_doubt_is_treated_as_chosen(
    redis_kit: RedisKit, opened: OpenStores, in_doubt: str, applied: Applied
) -> None:
    left_in_doubt(redis_kit, opened)
    store = opened(redis_kit.store(in_doubt=in_doubt))
    store.take(FIRST)
    assert store.apply(FIRST, records(range(4)), redis_kit.handler) == applied
    assert store.apply(FIRST, records(range(4)), redis_kit.handler) == Applied(0, 4)
    assert redis_kit.marks() == [(0, 3)]


@pytest.mark.parametrize(
    ("in_doubt", "applied"), [("redo", Applied(2, 2)), ("skip", Applied(1, 3))], ids=["redo", "skip"]
)
def test_a_record_in_doubt_does_not_keep_its_key(
    redis_kit: RedisKit, opened: OpenStores, in_doubt: str, applied: Applied
) -> None:
    options: dict[str, Any] = {"dedup_by": lambda each: each.value, "lease": 60}
    left_in_doubt(redis_kit, opened, **options)
    store = opened(redis_kit.store(in_doubt=in_doubt, **options))
    store.take(FIRST)
    begun = time.monotonic()
    assert store.apply(FIRST, records(range(4)), redis_kit.handler) == applied
    assert time.monotonic() - begun < 5
    assert store.apply(FIRST, records([2, 4], at=4), redis_kit.handler) == Applied(1, 1)


def test_a_record_is_skipped_though_the_answer_to_its_beginning_was_lost(
    redis_kit: RedisKit, opened: OpenStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_in_doubt(redis_kit, opened)
    store: Any = opened(redis_kit.store(in_doubt="skip"))
    store.take(FIRST)
    step, lost = store._step, list[Any]()

    def loses_an_answer(*given: Any, force: bool = False) -> Any:
        answer = step(*given, force=force)
        if force and not lost:
            lost.append(answer)
            raise StoreUnavailable("Redis: no answer")
        return answer

    monkeypatch.setattr(store, "_step", loses_an_answer)
    with pytest.raises(StoreUnavailable):
        store.apply(FIRST, records(range(4)), redis_kit.handler)
    assert lost
    assert store.apply(FIRST, records(range(4)), redis_kit.handler) == Applied(1, 3)


def test_a_record_in_doubt_stops_who_wants_to_look(redis_kit: RedisKit, opened: OpenStores) -> None:
    from gapless.client.stores.redis import RecordInDoubt

    left_in_doubt(redis_kit, opened)
    store = opened(redis_kit.store(in_doubt="stop"))
    store.take(FIRST)
    for _ in range(2):
        with pytest.raises(RecordInDoubt, match=r"orders-0 offset 2 .* in_doubt='redo'"):
            store.apply(FIRST, records(range(4)), redis_kit.handler)
    assert redis_kit.effects() == [b"shop:0", b"shop:1"]


def test_a_record_that_somebody_is_at_is_waited_for(redis_kit: RedisKit, opened: OpenStores) -> None:
    """The earlier owner may finish what it has begun; its successor neither repeats nor skips it."""
    earlier, successor = opened(redis_kit.store()), opened(redis_kit.store())
    earlier.take(FIRST)
    at_work, go_on = threading.Event(), threading.Event()
    became: list[object] = []

    def slow(each: Record, transaction: Any) -> None:
        redis_kit.handler(each, transaction)
        at_work.set()
        go_on.wait()

    def work() -> None:
        try:
            earlier.apply(FIRST, records(range(2)), slow)
        except PartitionTaken as taken:
            became.append(taken)

    def continue_it() -> None:
        became.append(successor.apply(FIRST, records(range(2)), redis_kit.handler))

    threads = [threading.Thread(target=work), threading.Thread(target=continue_it)]
    threads[0].start()
    at_work.wait()
    successor.take(FIRST)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join()
    assert Applied(1, 1) in became
    assert any(isinstance(each, PartitionTaken) for each in became)
    assert redis_kit.effects() == [b"shop:0", b"shop:1"]


def test_who_outlives_its_lease_cannot_mark_any_more(redis_kit: RedisKit, opened: OpenStores) -> None:
    """The effect happened twice: that is what the lease is to be longer than any handler for."""
    slow, successor = opened(redis_kit.store(lease=0.05)), opened(redis_kit.store(in_doubt="redo"))
    slow.take(FIRST)

    def outlives(each: Record, transaction: Any) -> None:
        redis_kit.handler(each, transaction)
        successor.take(FIRST)
        successor.apply(FIRST, [each], redis_kit.handler)

    with pytest.raises(PartitionTaken):
        slow.apply(FIRST, records(range(2)), outlives)
    assert redis_kit.effects() == [b"shop:0", b"shop:0"]
    assert redis_kit.marks() == [(0, 0)]


@pytest.mark.parametrize("dedup_by", ["identity", lambda each: each.value], ids=["identity", "key"])
def test_a_handler_that_fails_leaves_no_doubt(redis_kit: RedisKit, opened: OpenStores, dedup_by: Any) -> None:
    options: dict[str, Any] = {"dedup_by": dedup_by, "lease": 60}
    store = opened(redis_kit.store(in_doubt="stop", **options))
    store.take(FIRST)

    def fails(_record: Record, _transaction: Any) -> None:
        raise ValueError("no")

    with pytest.raises(HandlerFailed):
        store.apply(FIRST, records(range(2)), fails)
    another = opened(redis_kit.store(in_doubt="stop", **options))
    another.take(FIRST)
    begun = time.monotonic()
    assert another.apply(FIRST, records(range(2)), redis_kit.handler) == Applied(2, 0)
    assert time.monotonic() - begun < 5


def test_marks_expire_when_nothing_new_came_for_so_long(redis_kit: RedisKit, opened: OpenStores) -> None:
    store = opened(redis_kit.store(expire=3, lease=1))
    store.take(FIRST)
    store.apply(FIRST, records(range(3)), redis_kit.handler)
    assert redis_kit.marks() == [(0, 2)]
    deadline = time.monotonic() + 20
    while redis_kit.client.dbsize() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert redis_kit.marks() == []
    assert store.apply(FIRST, records([0, 3], at=3), redis_kit.handler) == Applied(2, 0)  # that was agreed


def test_a_redis_that_was_emptied_is_noticed(redis_kit: RedisKit, opened: OpenStores) -> None:
    from gapless.client.stores.redis import MarksForgotten

    store = opened(redis_kit.store())
    store.take(FIRST)
    store.apply(FIRST, records(range(3)), redis_kit.handler)
    redis_kit.client.flushall()
    with pytest.raises(MarksForgotten, match=r"lost marks of orders-0"):
        store.apply(FIRST, records([3], at=3), redis_kit.handler)


def test_a_redis_that_went_back_in_time_is_noticed(redis_kit: RedisKit, opened: OpenStores) -> None:
    """As after a restart from a file that lacks the last second."""
    from gapless.client.stores.redis import MarksForgotten

    store = opened(redis_kit.store())
    store.take(FIRST)
    store.apply(FIRST, records(range(3)), redis_kit.handler)
    (key,) = redis_kit.client.keys("gapless:partition:billing:orders:0")
    old = redis_kit.client.dump(key)
    store.apply(FIRST, records([3], at=3), redis_kit.handler)
    redis_kit.client.restore(key, 0, old, replace=True)  # type: ignore[arg-type]
    with pytest.raises(MarksForgotten):
        store.apply(FIRST, records([4], at=4), redis_kit.handler)


@pytest.mark.redis
def test_a_restart_with_a_file_of_every_write_forgets_nothing(tmp_path: Path) -> None:
    with Redis({"appendonly": "yes", "appendfsync": "always"}) as server:
        kit = RedisKit(server.url, tmp_path / "effects")
        store = kit.store()
        store.open(GROUP)
        store.take(FIRST)
        store.apply(FIRST, records(range(3)), kit.handler)
        server.kill()
        with pytest.raises(StoreUnavailable, match="Redis: "):
            store.apply(FIRST, records([3], at=3), kit.handler)
        server.start()
        assert store.apply(FIRST, records([0, 3], at=3), kit.handler) == Applied(1, 1)
        assert kit.marks() == [(0, 3)]
        store.close()
        kit.close()


@pytest.mark.redis
def test_what_was_done_before_redis_went_away_is_not_done_again(tmp_path: Path) -> None:
    """The handler is through; the mark cannot be set until Redis is back."""
    with Redis({"appendonly": "yes", "appendfsync": "always"}) as server:
        kit = RedisKit(server.url, tmp_path / "effects")
        store = kit.store()
        store.open(GROUP)
        store.take(FIRST)

        def loses_redis(each: Record, transaction: Any) -> None:
            kit.handler(each, transaction)
            server.kill()

        with pytest.raises(StoreUnavailable):
            store.apply(FIRST, records(range(2)), loses_redis)
        server.start()
        assert store.apply(FIRST, records(range(2)), kit.handler) == Applied(1, 1)
        assert kit.effects() == [b"shop:0", b"shop:1"]
        assert kit.marks() == [(0, 1)]
        store.close()
        kit.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
@pytest.mark.redis
def test_a_redis_that_drops_keys_is_refused(policy: str) -> None:
    from gapless.client.stores.redis import RedisStore

    with Redis({"maxmemory": "100mb", "maxmemory-policy": policy}) as server:
        store = RedisStore(server.url, expire="1h", in_doubt="redo")
        with pytest.raises(UsageError, match=f"maxmemory-policy {policy}.*noeviction"):
            store.open(GROUP)
        store.close()


def test_a_full_redis_refuses_and_forgets_nothing(redis_kit: RedisKit, opened: OpenStores) -> None:
    store = opened(redis_kit.store())
    store.take(FIRST)
    store.apply(FIRST, records(range(3)), redis_kit.handler)
    redis_kit.client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            store.apply(FIRST, records([3], at=3), redis_kit.handler)
    finally:
        redis_kit.client.config_set("maxmemory", "0")
    assert store.apply(FIRST, records([3, 0], at=3), redis_kit.handler) == Applied(1, 1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"in_doubt": "guess"}, "choose redo, skip or stop"),
        ({"expire": 10, "lease": 10}, "shorter than expire"),
        ({"lease": 0}, "above 0"),
        ({"expire": "soon"}, "no duration"),
    ],
)
def test_settings_that_cannot_be_are_refused(redis_kit: RedisKit, options: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        redis_kit.store(**options)


@pytest.mark.redis
def test_a_url_that_cannot_be_read_is_refused() -> None:
    from gapless.client.stores.redis import RedisStore

    with pytest.raises(UsageError, match="url of RedisStore"):
        RedisStore("nonsense", expire="1h", in_doubt="redo")
    with pytest.raises(UsageError, match="url of RedisStore"):
        RedisStore(7, expire="1h", in_doubt="redo")  # type: ignore[arg-type]


@pytest.mark.redis
def test_an_unreachable_redis_is_told() -> None:
    from gapless.client.stores.redis import RedisStore

    store = RedisStore("redis://127.0.0.1:1/0", expire="1h", in_doubt="redo")
    with pytest.raises(StoreUnavailable, match="Redis: "):
        store.open(GROUP)
    store.close()


def test_sequences_stay_apart_up_to_the_last_that_redis_can_count(
    redis_kit: RedisKit, opened: OpenStores
) -> None:
    from gapless.client.stores.redis import MAX_SEQUENCE

    store = opened(redis_kit.store())
    store.take(FIRST)
    high = [MAX_SEQUENCE - 2, MAX_SEQUENCE, MAX_SEQUENCE - 1, MAX_SEQUENCE]
    assert store.apply(FIRST, records(high), redis_kit.handler) == Applied(3, 1)
    assert redis_kit.marks() == [(MAX_SEQUENCE - 2, MAX_SEQUENCE)]
    assert store.apply(FIRST, [record(4, MAX_SEQUENCE + 1)], redis_kit.handler) == Applied(1, 0)
