"""Sent records are kept for a while, and go first when the bound needs their space; unsent ones never go."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.client.spool import Spool, SpoolFull, Ticket
from gapless.errors import UsageError

from .disks import open_spool, read_everything, segments, store

BOUND = 40_000
VALUE = b"x" * 1000


def fill(spool: Spool) -> Iterator[Ticket]:
    while True:
        yield spool.append("orders", 0, VALUE)


def test_sent_segments_are_kept_for_their_time_even_after_a_restart(tmp_path: Path) -> None:
    with open_spool(tmp_path, segment_bytes=5000) as spool:
        store(spool, *[VALUE] * 30)
        spool.note_sent(30)
        count = len(segments(tmp_path))
        assert count > 4
        assert spool.first == 0
        assert len(read_everything(spool)) == 30  # to be sent again
    with open_spool(tmp_path, segment_bytes=5000, keep_s=3600) as spool:
        store(spool, VALUE)
        spool.note_sent(31)
        assert len(segments(tmp_path)) >= count
    with open_spool(tmp_path, segment_bytes=5000, keep_s=0) as spool:
        store(spool, VALUE)
        spool.note_sent(32)
        assert len(segments(tmp_path)) == 1


def test_time_counts_from_the_sending_not_from_the_writing(tmp_path: Path) -> None:
    with open_spool(tmp_path, segment_bytes=2000, keep_s=0.3) as spool:
        store(spool, *[VALUE] * 6)
        time.sleep(0.5)  # an outage longer than what is kept
        spool.note_sent(6)
        assert spool.first == 0
        deadline = time.monotonic() + 30
        while spool.first == 0 and time.monotonic() < deadline:
            store(spool, b"")
            spool.note_sent(spool.stored)
        assert spool.first > 0


def test_a_full_spool_refuses_and_never_grows_beyond_its_bound(tmp_path: Path) -> None:
    with open_spool(tmp_path, max_bytes=BOUND) as spool:
        taken: list[Ticket] = []
        with pytest.raises(SpoolFull, match="until more of it is sent"):
            taken.extend(fill(spool))
        spool.wait_stored(taken[-1])
        assert BOUND * 0.8 < sum(path.stat().st_size for path in segments(tmp_path)) <= BOUND
        with pytest.raises(SpoolFull):
            spool.append("orders", 0, VALUE)
        assert len(read_everything(spool)) == len(taken)
        assert spool.next_sequence("orders", 0) == len(taken)  # a refused one leaves no gap


@pytest.mark.parametrize("when_full", ["refuse", "block"])
def test_nothing_goes_for_what_will_never_fit(tmp_path: Path, when_full: str) -> None:
    with open_spool(tmp_path, max_bytes=BOUND, when_full=when_full) as spool:
        store(spool, *[VALUE] * 20)
        spool.note_sent(20)
        for _ in range(2):
            with pytest.raises(SpoolFull, match="will never fit"):
                spool.append_many("orders", 0, [VALUE] * 50)
        assert (spool.first, len(read_everything(spool))) == (0, 20)
        spool.wait_stored(spool.append_many("orders", 0, [VALUE] * 30)[-1])  # for this, what was sent goes
        assert spool.first > 0
        assert spool.stored == 50


@pytest.mark.parametrize("group", [1, 5, 30])
@pytest.mark.parametrize("together", [True, False])
def test_what_was_sent_makes_room_for_ever(tmp_path: Path, group: int, together: bool) -> None:
    with open_spool(tmp_path, max_bytes=BOUND) as spool:
        for _ in range(10):
            for _ in range(group):
                spool.wait_stored(spool.append("orders", 0, VALUE), timeout=0 if together else None)
            assert spool.wait_for(spool.end - 1, timeout=30)
            spool.note_sent(spool.stored)
            assert spool.size_bytes <= BOUND
        assert spool.stored == 10 * group


def test_a_blocked_sender_goes_on_when_enough_was_sent(tmp_path: Path) -> None:
    with open_spool(tmp_path, max_bytes=BOUND, when_full="block") as spool:
        total = 200
        sender = threading.Thread(target=lambda: [spool.append("orders", 0, VALUE) for _ in range(total)])
        sender.start()
        position = 0
        while position < total:
            assert spool.wait_for(position, timeout=30)
            records = spool.read(position, 10)
            position = records[-1].position + 1
            assert spool.size_bytes <= BOUND
            spool.note_sent(position)
        sender.join(30)
        assert not sender.is_alive()


def test_a_blocked_sender_gives_up_after_its_time(tmp_path: Path) -> None:
    with (
        open_spool(tmp_path, max_bytes=BOUND, when_full="block", block_s=0.05) as spool,
        pytest.raises(SpoolFull),
    ):
        list(fill(spool))


def test_closing_frees_a_blocked_sender(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, max_bytes=BOUND, when_full="block")
    errors: list[Exception] = []

    def send() -> None:
        try:
            for _ in range(100):
                spool.append("orders", 0, VALUE)
        except Exception as error:
            errors.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    assert spool.wait_for(30, timeout=30)
    spool.close()
    sender.join(30)
    assert [type(error).__name__ for error in errors] == ["SpoolClosed"]


def test_a_record_that_can_never_fit_is_refused_even_by_a_spool_that_blocks(tmp_path: Path) -> None:
    with open_spool(tmp_path, max_bytes=BOUND, when_full="block") as spool:
        with pytest.raises(SpoolFull):
            spool.append("orders", 0, b"x" * BOUND)
        store(spool, VALUE)


@pytest.mark.parametrize("options", [{"when_full": "drop"}, {"max_bytes": 100}])
def test_a_bound_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        open_spool(tmp_path, **options)
