"""Status and verification, without the lock and beside a running writer."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gapless.client.spool import SpoolOfAnother
from gapless.client.spool.inspect import status, verify

from .disks import SOURCE, open_spool, segments, store


def test_status_tells_what_is_there(tmp_path: Path) -> None:
    with open_spool(tmp_path, segment_bytes=1000) as spool:
        for number in range(10):
            spool.wait_stored(spool.append("orders", 0, b"x" * 300, timestamp_ms=1000 + number))
        spool.note_claimed()
        spool.note_sent(4)
        seen = status(tmp_path)
        assert (seen.source, seen.incarnation, seen.claimed) == (SOURCE, spool.incarnation, True)
        assert (seen.first, seen.sent, seen.stored, seen.unsent) == (0, 4, 10, 6)
        assert seen.oldest_unsent_ms == 1004
        sizes = [path.stat().st_size for path in segments(tmp_path)]
        assert (seen.segments, seen.size_bytes) == (len(sizes), sum(sizes))
        assert seen.pid == os.getpid()
        spool.note_sent(10)
        assert status(tmp_path).oldest_unsent_ms is None
    assert status(tmp_path).pid is None


def test_status_and_verify_beside_a_running_writer_never_see_damage(tmp_path: Path) -> None:
    stop = threading.Event()
    with open_spool(tmp_path, segment_bytes=20_000, keep_s=0) as spool:

        def write() -> None:
            while not stop.is_set():
                ticket = spool.append("orders", 0, b"x" * 500)
                if ticket.position % 5 == 0:
                    spool.wait_stored(ticket)
                    spool.note_sent(max(spool.stored - 50, 0))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            last = 0
            for _ in range(40):
                seen = status(tmp_path)
                assert seen.sent <= seen.stored
                assert seen.stored >= last
                last = seen.stored
                assert verify(tmp_path).problems == []
            assert last > 0
        finally:
            stop.set()
            writer.join()


def test_verify_counts_everything(tmp_path: Path) -> None:
    with open_spool(tmp_path, segment_bytes=1000) as spool:
        store(spool, *[b"x" * 300] * 10)
        spool.append("orders", 0, b"y", incarnation=b"another!", sequence=7)
    found = verify(tmp_path)
    assert (found.records, found.blocks, found.first, found.stored) == (11, 21 - 10, 0, 11)
    assert (found.segments, found.problems) == (len(segments(tmp_path)), [])


def test_a_folder_without_a_spool_is_told_so(tmp_path: Path) -> None:
    for look in (status, verify):
        with pytest.raises(SpoolOfAnother, match="there is no spool"):
            look(tmp_path)
        with pytest.raises(SpoolOfAnother, match="there is no spool"):
            look(tmp_path / "missing")
