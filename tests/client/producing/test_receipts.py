"""A receipt tells everybody who asks, once, from whatever thread it is settled."""

from __future__ import annotations

import asyncio
import doctest
import gc
import threading
import time
import weakref
from pathlib import Path

import pytest

from gapless.client.producing import receipts
from gapless.client.producing.draining import DrainSettling
from gapless.client.producing.polling import Poller
from gapless.client.producing.receipts import DeliveryFailed, LeftInSpool, Receipt, StillWaiting, Stream
from gapless.client.producing.settling import Settling
from gapless.client.spool import Spool, Ticket
from gapless.errors import GaplessError, UsageError

STREAM = Stream("s", b"8 bytes.", "t", 3)


def test_its_example_runs() -> None:
    assert doctest.testmod(receipts).failed == 0


def test_whoever_waits_is_told() -> None:
    receipt = Receipt(STREAM, 1)
    waiting = [threading.Thread(target=receipt.wait, args=(10.0,)) for _ in range(3)]
    for each in waiting:
        each.start()
    receipt.settle(None)
    receipt.settle(DeliveryFailed("too late to count"))
    for each in waiting:
        each.join(10.0)
    assert (receipt.wait(), receipt.done, receipt.error) == (receipt, True, None)


def test_a_failure_is_raised_where_somebody_waits() -> None:
    receipt = Receipt(STREAM, 1)
    receipt.settle(DeliveryFailed("because"))
    with pytest.raises(DeliveryFailed, match="because"):
        receipt.wait()
    assert str(receipt.error) == "because"


def test_waiting_ends_with_the_time() -> None:
    with pytest.raises(StillWaiting, match="t-3 #1 pending> is undecided"):
        Receipt(STREAM, 1).wait(0.01)


def test_it_can_be_awaited_and_settled_by_a_thread() -> None:
    async def send() -> tuple[Receipt, Receipt]:
        first, second = Receipt(STREAM, 1), Receipt(STREAM, 2)
        threading.Timer(0.01, first.settle, (None,)).start()
        second.settle(None)
        return await asyncio.gather(_awaited(first), _awaited(second))

    first, second = asyncio.run(send())
    assert (first.sequence, second.sequence) == (1, 2)


@pytest.mark.parametrize("settles_later", [True, False])
def test_a_receipt_that_was_awaited_is_not_kept(settles_later: bool) -> None:
    settled = threading.Event()

    def settle(receipt: weakref.ref[Receipt]) -> None:
        found = receipt()
        assert found is not None, "a receipt must live while a task awaits it"
        found.settle(None)
        settled.set()

    async def send() -> weakref.ref[Receipt]:
        receipt = Receipt(STREAM, 1)
        awaited = weakref.ref(receipt)
        if settles_later:
            threading.Timer(0.01, settle, (awaited,)).start()
        else:
            settle(awaited)
        await receipt
        return awaited

    awaited = asyncio.run(send())
    assert settled.wait(10.0)
    gc.collect()
    assert awaited() is None


async def _awaited(receipt: Receipt) -> Receipt:
    return await receipt


def test_an_await_given_up_does_no_harm() -> None:
    async def send() -> None:
        receipt = Receipt(STREAM, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_awaited(receipt), 0.01)
        receipt.settle(None)
        assert await receipt is receipt

    asyncio.run(send())


def test_without_a_spool_nothing_is_stored() -> None:
    with pytest.raises(UsageError, match="spool_mode='always'"):
        Receipt(STREAM, 1).stored()


def test_settling_and_waiting_at_the_same_moment_misses_nobody() -> None:
    for _ in range(300):
        receipt = Receipt(STREAM, 1)
        settler = threading.Thread(target=receipt.settle, args=(None,))
        settler.start()
        receipt.wait(10.0)
        settler.join()


def test_callbacks_and_chores_do_not_wait_for_another_thread_that_polls() -> None:
    """Such as a thread in flush(). A poll takes 50 ms: a callback that waited for one would be later."""
    told, chores = threading.Semaphore(0), threading.Semaphore(0)
    took_s: list[float] = []
    poller = Poller({"bootstrap.servers": "127.0.0.1:1"}, "held", chores.release)
    with poller.polling:
        poller.start()
        for number in range(20):
            while chores.acquire(blocking=False):
                pass
            assert chores.acquire(timeout=10.0)  # The thread has just begun another turn.
            began = time.monotonic()
            receipt = Receipt(STREAM, number, lambda _error, _receipt: told.release())
            receipt.settle(None)
            poller.settled(receipt)
            assert told.acquire(timeout=10.0)
            took_s.append(time.monotonic() - began)
    poller.stop()
    assert min(took_s) < 0.03


@pytest.mark.parametrize("drains", [False, True])
def test_a_record_taken_while_the_producer_ends_is_told_of(tmp_path: Path, drains: bool) -> None:
    """Its callback was not there yet when all others were called."""
    told: list[GaplessError | None] = []
    poller = Poller({"bootstrap.servers": "127.0.0.1:1"}, "ending", lambda: None)
    with Spool(tmp_path, "ending") as spool:
        settling = DrainSettling(spool, poller) if drains else Settling(spool)

        def take() -> Ticket:
            ticket = spool.append("orders", 0, b"x")
            settling.end(LeftInSpool("it is in the spool"))
            poller.stop()
            return ticket

        stream = Stream("ending", spool.incarnation, "orders", 0)
        settling.receipt(stream, take, lambda error, _receipt: told.append(error))
    assert [type(each) for each in told] == [LeftInSpool]
