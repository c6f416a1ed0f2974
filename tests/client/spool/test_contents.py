"""A spool's records, read without its lock."""

from __future__ import annotations

from pathlib import Path

from gapless.client.formats import Interval
from gapless.client.spool.contents import kept, unsent

from .disks import SOURCE, open_spool


def test_all_records_that_are_kept_are_read_beside_their_producer(tmp_path: Path) -> None:
    with open_spool(tmp_path, segment_bytes=1000) as spool:
        for number in range(20):
            spool.wait_stored(spool.append("orders", number % 2, b"%d" % number * 300))
        spool.note_sent(15)
        assert [record.value for record in kept(tmp_path)] == [b"%d" % n * 300 for n in range(20)]
        assert [record.position for record in kept(tmp_path, 7)] == list(range(7, 20))


def test_what_is_unsent_is_told_by_intervals(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        for number in range(10):
            spool.append("orders", number % 2, b"x")
        spool.append("orders", 0, b"y", incarnation=b"another!", sequence=7)
        spool.wait_stored(spool.append("orders", 0, b"z", incarnation=b"another!", sequence=9))
        spool.note_sent(3)
        found = unsent(tmp_path)
        assert found.source == SOURCE
        assert found.intervals == {
            spool.incarnation: [Interval("orders", 1, 1, 4), Interval("orders", 0, 2, 4)],
            b"another!": [Interval("orders", 0, 7, 7), Interval("orders", 0, 9, 9)],
        }
        spool.note_sent(12)
        assert unsent(tmp_path).intervals == {}
