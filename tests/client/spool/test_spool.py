"""What is appended is read back, in order, with its identity; by one process, of one source, at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gapless.client.spool import (
    NotKept,
    Spool,
    SpoolClosed,
    SpoolDamaged,
    Spooled,
    SpoolError,
    SpoolFailed,
    SpoolInUse,
    SpoolOfAnother,
    SpoolRestored,
)
from gapless.errors import UsageError

from .disks import BROKEN, SOURCE, FaultyDisk, open_spool, read_everything, segments, store


def test_records_come_back_whole_from_memory_and_from_disk(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        ticket = spool.append(
            "orders", 3, b"v", b"k", [("a", b"1"), ("b", None), ("a", b"")], 1_700_000_000_000
        )
        spool.append("orders", 3, None, b"")
        spool.append("ünïcode", 0, b"", None, (), 0)
        assert spool.wait_stored(ticket)
        assert (ticket.position, ticket.sequence, ticket.is_stored) == (0, 0, True)
        mine = spool.incarnation
        spool.wait_for(2)
        from_memory = read_everything(spool)
    with open_spool(tmp_path) as spool:
        assert read_everything(spool) == from_memory
    headers = (("a", b"1"), ("b", None), ("a", b""))
    assert from_memory == [
        Spooled(0, mine, "orders", 3, 0, 1_700_000_000_000, b"k", b"v", headers),
        Spooled(1, mine, "orders", 3, 1, None, b"", None, ()),
        Spooled(2, mine, "ünïcode", 0, 0, 0, None, b"", ()),
    ]


def test_sequences_are_dense_per_partition_and_go_on_after_a_restart(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        for number in range(10):
            spool.append("orders", number % 2, b"%d" % number)
        incarnation = spool.incarnation
    with open_spool(tmp_path) as spool:
        assert spool.incarnation == incarnation
        assert (spool.next_sequence("orders", 0), spool.next_sequence("orders", 1)) == (5, 5)
        assert spool.next_sequence("orders", 2) == 0
        ticket = spool.append("orders", 1, b"10")
        assert (ticket.position, ticket.sequence) == (10, 5)
        assert spool.wait_stored(ticket)
        assert [record.sequence for record in read_everything(spool) if record.partition == 1] == list(
            range(6)
        )


def test_a_record_that_has_an_identity_keeps_it(tmp_path: Path) -> None:
    other = b"another!"
    with open_spool(tmp_path) as spool:
        spool.append("orders", 0, b"mine")
        spool.append("orders", 0, b"fell back", incarnation=other, sequence=41)
        store(spool, b"mine too")
        found = [(record.incarnation == other, record.sequence) for record in read_everything(spool)]
        assert found == [(False, 0), (True, 41), (False, 1)]
        assert spool.sequences_at(3) == {(spool.incarnation, "orders", 0): 2, (other, "orders", 0): 42}
        for wrong in ({"incarnation": other}, {"sequence": 3}, {"incarnation": b"short", "sequence": 1}):
            with pytest.raises(UsageError):
                spool.append("orders", 0, b"", **wrong)
        with pytest.raises(UsageError, match="itself gives sequences"):
            spool.append("orders", 0, b"", incarnation=spool.incarnation, sequence=9)


def test_a_new_folder_is_a_new_incarnation(tmp_path: Path) -> None:
    with open_spool(tmp_path / "a") as one, open_spool(tmp_path / "b") as two:
        assert one.incarnation != two.incarnation


def test_only_what_is_stored_can_be_read(tmp_path: Path) -> None:
    with open_spool(tmp_path, linger_s=3600) as spool:
        ticket = spool.append("orders", 0, b"pending")
        assert (spool.end, spool.stored, ticket.is_stored) == (1, 0, False)
        assert spool.read(0) == []
        assert not spool.wait_for(0, timeout=0.01)
        assert spool.wait_stored(ticket, timeout=30)
        assert spool.wait_for(0, timeout=0)
        assert len(spool.read(0)) == 1


def test_what_nobody_waits_for_is_stored_soon_and_at_close(tmp_path: Path) -> None:
    stored_ends: list[int] = []
    heard = threading.Event()
    with open_spool(tmp_path) as spool:
        spool.on_stored(stored_ends.append)
        spool.on_stored(lambda end: heard.set())
        spool.append("orders", 0, b"1")
        assert spool.wait_for(0, timeout=30)
        assert heard.wait(30)
        spool.append("orders", 0, b"2")
    assert stored_ends == [1, 2]
    with open_spool(tmp_path) as spool:
        assert spool.stored == 2
    with pytest.raises(SpoolClosed):
        spool.append("orders", 0, b"3")


def test_reading_is_bounded_by_records_and_bytes_and_gives_at_least_one(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, *[b"x" * 100] * 20)
        for opened in (spool,):
            assert len(opened.read(0, 7)) == 7
            assert len(opened.read(0, 100, 250)) == 2
            assert len(opened.read(5, 100, 1)) == 1
            assert [record.position for record in opened.read(18)] == [18, 19]
            assert opened.read(20) == []
    with open_spool(tmp_path) as spool:  # from disk now
        assert len(spool.read(0, 7)) == 7
        assert len(spool.read(0, 100, 250)) == 2
        assert len(spool.read(5, 100, 1)) == 1
        assert [record.position for record in spool.read(18)] == [18, 19]
        assert [record.position for record in spool.read(3, 2)] == [3, 4]


def test_sequences_at_any_position_are_those_of_the_records_before_it(tmp_path: Path) -> None:
    with open_spool(tmp_path, segment_bytes=600) as spool:
        for number in range(40):
            spool.append("orders", number % 3, b"x" * 50)
            if number % 4 == 0:
                spool.wait_stored(spool.append("clicks", 0, b"y"))
        spool.wait_for(49, timeout=30)
        records = read_everything(spool)
        assert len(segments(tmp_path)) > 3
        for position in range(51):
            expected = {(r.incarnation, r.topic, r.partition): r.sequence + 1 for r in records[:position]}
            found = {
                stream: sequence for stream, sequence in spool.sequences_at(position).items() if sequence
            }
            assert found == expected


def test_two_at_once_are_refused_with_the_pid(tmp_path: Path) -> None:
    with open_spool(tmp_path):
        with pytest.raises(SpoolInUse, match="in use by process"):
            open_spool(tmp_path)
        code = f"from gapless.client.spool import Spool; Spool({str(tmp_path)!r}, {SOURCE!r})"
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode != 0
        assert "SpoolInUse" in ran.stderr
    open_spool(tmp_path).close()


def test_a_forked_process_keeps_nobody_out(tmp_path: Path) -> None:
    """Else one that outlives its parent would hold the folder for ever."""
    spool = open_spool(tmp_path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # until the parent hangs up
        os._exit(0)
    os.close(reading)
    try:
        with pytest.raises(SpoolInUse):
            open_spool(tmp_path)
        spool.close()
        open_spool(tmp_path).close()
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_another_sources_folder_is_refused(tmp_path: Path) -> None:
    open_spool(tmp_path).close()
    with pytest.raises(SpoolOfAnother, match="belongs to source 'orders-api', not 'billing'"):
        Spool(tmp_path, "billing")
    open_spool(tmp_path).close()  # and left as it was, unlocked


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    open_spool(tmp_path).close()
    about = tmp_path / "spool.json"
    about.write_text(about.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(SpoolOfAnother, match="version 2"):
        open_spool(tmp_path)


def test_a_segment_of_another_spool_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with open_spool(tmp_path / name) as spool:
            store(spool, b"1")
    segments(tmp_path / "a")[0].replace(segments(tmp_path / "b")[0])
    with pytest.raises(SpoolOfAnother, match="comes from another spool"):
        open_spool(tmp_path / "b")


def test_an_old_copy_is_found_out_by_what_the_cluster_has(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, b"1", b"2")
        spool.note_sent(2)
        with pytest.raises(SpoolRestored, match="old copy"):
            spool.note_sent(3)
        assert spool.sent == 2


def test_the_claim_and_what_was_sent_are_remembered(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        assert not spool.claimed
        spool.note_claimed()
        store(spool, b"1", b"2", b"3")
        spool.note_sent(2)
        spool.note_sent(1)  # never backwards
    with open_spool(tmp_path) as spool:
        assert spool.claimed
        assert (spool.sent, spool.stored) == (2, 3)


@pytest.mark.parametrize(
    "record",
    [
        ("orders", 0, "text"),
        ("orders", 0, b"", bytearray(b"k")),
        ("orders", 0, b"", None, [("a", "text")]),
        ("orders", 0, b"", None, (), 1.5),
        ("orders", 0, b"", None, (), 1 << 63),
        ("orders", -1, b""),
        ("", 0, b""),
        ("orders", 0, b"", None, [("n" * 70_000, b"")]),
    ],
)
def test_what_cannot_be_stored_is_refused_alone(tmp_path: Path, record: tuple[object, ...]) -> None:
    with open_spool(tmp_path, linger_s=3600) as spool:
        before = spool.append("orders", 0, b"before")
        with pytest.raises(UsageError):
            spool.append(*record)  # type: ignore[arg-type]
        after = spool.append("orders", 0, b"after")
        assert spool.wait_stored(after)
        assert before.is_stored
        assert [each.value for each in read_everything(spool)] == [b"before", b"after"]
        assert after.sequence == 1


def test_a_record_larger_than_any_buffer_passes_alone(tmp_path: Path) -> None:
    large = b"x" * (9 << 20)
    with open_spool(tmp_path) as spool:
        spool.append("orders", 0, b"before")
        store(spool, large, b"after")
    with open_spool(tmp_path) as spool:
        assert [record.value for record in read_everything(spool)] == [b"before", large, b"after"]


def test_many_threads_share_syncs_and_none_waits_in_vain(tmp_path: Path) -> None:
    disk = FaultyDisk()
    threads, each = 16, 40
    with open_spool(tmp_path, disk=disk) as spool:
        before = disk.syncs

        def send(thread: int) -> None:
            for number in range(each):
                ticket = spool.append("orders", thread, b"%d" % number)
                assert spool.wait_stored(ticket, timeout=60)
                assert spool.stored > ticket.position

        senders = [threading.Thread(target=send, args=(thread,)) for thread in range(threads)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        assert disk.syncs - before < threads * each / 2
        records = read_everything(spool)
        for thread in range(threads):
            mine = [(r.sequence, r.value) for r in records if r.partition == thread]
            assert mine == [(number, b"%d" % number) for number in range(each)]


def test_opening_reads_none_of_the_older_segments(tmp_path: Path) -> None:
    with open_spool(tmp_path, segment_bytes=10_000) as spool:
        store(spool, *[b"x" * 1000] * 100)
    older = {path: path.read_bytes() for path in segments(tmp_path)[:-1]}
    assert len(older) >= 9
    for path, content in older.items():
        path.write_bytes(bytes(len(content)))  # Reading it would raise SpoolDamaged.
    with open_spool(tmp_path, segment_bytes=10_000) as spool:
        assert spool.next_sequence("orders", 0) == 100
        with pytest.raises(SpoolDamaged):
            read_everything(spool)
    for path, content in older.items():
        path.write_bytes(content)
    with open_spool(tmp_path, segment_bytes=10_000) as spool:
        assert len(read_everything(spool)) == 100


def test_what_is_no_longer_kept_is_told_so(tmp_path: Path) -> None:
    with open_spool(tmp_path, segment_bytes=1000, keep_s=0) as spool:
        store(spool, *[b"x" * 500] * 10)
        spool.note_sent(8)
        assert 0 < spool.first <= 8
        with pytest.raises(NotKept, match=f"it begins at {spool.first}"):
            spool.read(0)
        assert [record.position for record in read_everything(spool)] == list(range(spool.first, 10))


def test_a_file_in_place_of_the_folder_gives_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.write_text("hello")
    with pytest.raises(SpoolError, match="is a file"):
        open_spool(path)


def test_a_listener_that_fails_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_spool(tmp_path) as spool:
        spool.on_stored(lambda end: 1 // 0)  # type: ignore[arg-type]
        store(spool, b"1", b"2")
    assert "a listener of the spool" in caplog.text


def test_what_a_killed_process_left_in_memory_is_synced_before_it_counts_as_stored(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, b"1")
    disk = FaultyDisk()
    with open_spool(tmp_path, disk=disk):
        assert disk.syncs == 1
    disk.sync_error = BROKEN
    with pytest.raises(SpoolFailed, match="cannot be opened"):
        open_spool(tmp_path, disk=disk)


def test_whoever_waits_on_a_thread_writes_and_what_came_meanwhile_is_stored_too(tmp_path: Path) -> None:
    names: list[str] = []
    with open_spool(tmp_path, linger_s=0.001) as spool:
        spool.on_stored(lambda end: names.append(threading.current_thread().name))

        def send() -> None:
            for _ in range(50):
                spool.wait_stored(spool.append("orders", 0, b"waited for"))
                spool.append("orders", 1, b"left to the writer")

        sender = threading.Thread(target=send, name="sender")
        sender.start()
        sender.join(60)
        assert spool.wait_for(99, timeout=30)
        assert {record.sequence for record in read_everything(spool) if record.partition == 1} == set(
            range(50)
        )
    assert "sender" in names
