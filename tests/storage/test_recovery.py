"""Opening a log after a stop of any kind: what is kept, cut, refused, and what is read for it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gapless.core.log import LogConfig, LogFailed, ProducerEntry
from gapless.storage import FileLog, FileLogStore, Recovery
from gapless.storage.formats import RECOVERY_POINTS_FILE, encode_offsets
from gapless.wire.batch import HEADER_SIZE
from tests.storage.helpers import (
    SMALL,
    TOPIC,
    append_one,
    crashed_copy,
    fill,
    flush,
    log_file,
    make_batch,
    names,
    offsets_of,
    open_log,
    read_all,
)

BIG = LogConfig(segment_bytes=1 << 30, index_interval_bytes=4096)


@contextmanager
def reopened(folder: Path, config: LogConfig = SMALL) -> Iterator[tuple[FileLogStore, FileLog]]:
    store = FileLogStore(folder)
    try:
        yield store, open_log(store, config)
    finally:
        store.close()


def newest_log(store: FileLogStore) -> Path:
    return max((Path(store.location) / f"{TOPIC}-0").glob("*.log"))


# ------------------------------------------------------------------------------------------ torn tails


def test_a_tail_torn_at_any_byte_is_cut_to_the_last_whole_batch(store: FileLogStore, tmp_path: Path) -> None:
    log = open_log(store, BIG)
    batches = fill(log, 20, value=b"x")
    whole = b"".join(batches)
    crashed = crashed_copy(store, tmp_path / "crashed")
    path = crashed / f"{TOPIC}-0" / f"{0:020d}.log"
    for size in range(len(whole) - 2 * len(batches[-1]) - 3, len(whole)):
        path.write_bytes(whole[:size])
        kept = size // len(batches[0])
        with reopened(crashed, BIG) as (_, again):
            assert again.end_offset == kept
            assert read_all(again) == b"".join(batches[:kept])
            torn = size - kept * len(batches[0])
            assert again.recovery.truncated_bytes == torn
            assert (again.recovery.reason is None) == (torn == 0)
            assert path.stat().st_size == kept * len(batches[0])
            append_one(again)
            assert offsets_of(read_all(again)) == list(range(kept + 1))


def test_what_was_cut_is_reported_with_how_much_and_why(
    store: FileLogStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(open_log(store), 3)
    crashed = crashed_copy(store, tmp_path / "crashed")
    path = crashed / f"{TOPIC}-0" / f"{0:020d}.log"
    whole = path.stat().st_size
    os.truncate(path, whole - 10)
    with caplog.at_level(logging.WARNING), reopened(crashed) as (_, log):
        size = whole // 3
        assert log.recovery == Recovery(
            scanned_bytes=whole - 10,
            truncated_bytes=size - 10,
            reason=f"of the batch at offset 2 only {size - 10} of {size} bytes were written "
            f"({path} at byte {2 * size})",
        )
    assert f"cut {size - 10} bytes: of the batch at offset 2" in caplog.text


def test_zeros_at_the_end_as_a_power_cut_leaves_them_are_cut(store: FileLogStore, tmp_path: Path) -> None:
    batches = fill(open_log(store), 5)
    crashed = crashed_copy(store, tmp_path / "crashed")
    path = crashed / f"{TOPIC}-0" / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size + 5000)
    with reopened(crashed) as (_, log):
        assert read_all(log) == b"".join(batches)
        assert log.recovery.truncated_bytes == 5000
        assert "there is no batch where offset 5 should be" in str(log.recovery.reason)


# -------------------------------------------------------------------------------------------- bit rot


def test_a_flipped_bit_anywhere_in_a_batch_above_the_recovery_point_cuts_it(
    store: FileLogStore, tmp_path: Path
) -> None:
    log = open_log(store, BIG)
    batches = fill(log, 6, value=b"x")
    whole = bytearray(b"".join(batches))
    crashed = crashed_copy(store, tmp_path / "crashed")
    path = crashed / f"{TOPIC}-0" / f"{0:020d}.log"
    size = len(batches[0])
    victim = 4
    epoch_field = range(12, 16)  # the leader epoch is outside the checksum, as the broker sets it
    for byte in range(size):
        damaged = bytearray(whole)
        damaged[victim * size + byte] ^= 1 << (byte % 8)
        path.write_bytes(damaged)
        with reopened(crashed, BIG) as (_, again):
            if byte in epoch_field:
                assert again.end_offset == 6
            else:
                assert again.end_offset == victim, f"byte {byte}"
                assert again.recovery.truncated_bytes == 2 * size
                assert read_all(again) == b"".join(batches[:victim])


def test_sound_batches_behind_a_damaged_one_are_counted_in_the_reason(
    store: FileLogStore, tmp_path: Path
) -> None:
    batches = fill(open_log(store, BIG), 10)
    crashed = crashed_copy(store, tmp_path / "crashed")
    path = crashed / f"{TOPIC}-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[3 * len(batches[0]) + HEADER_SIZE + 5] ^= 0xFF
    path.write_bytes(data)
    with reopened(crashed, BIG) as (_, log):
        assert log.end_offset == 3
        assert log.recovery.truncated_bytes == 7 * len(batches[0])
        assert "the checksum of the batch at offset 3 is wrong" in str(log.recovery.reason)
        assert "6 sound batches behind it went with it" in str(log.recovery.reason)


def test_segments_behind_a_damaged_one_are_cut_too(store: FileLogStore, tmp_path: Path) -> None:
    fill(open_log(store), 100)
    infos = store.logs[TOPIC, 0].segments()
    assert len(infos) > 3
    crashed = crashed_copy(store, tmp_path / "crashed")
    path = crashed / f"{TOPIC}-0" / f"{infos[1].base_offset:020d}.log"
    os.truncate(path, path.stat().st_size - 1)
    with reopened(crashed) as (again_store, log):
        assert log.end_offset == infos[2].base_offset - 1
        assert [info.base_offset for info in log.segments()] == [0, infos[1].base_offset]
        lost = sum(info.size_bytes for info in infos[2:])
        assert log.recovery.truncated_bytes > lost
        assert again_store.prepare_deletions() is not None


def test_a_segment_that_does_not_follow_is_cut_with_all_behind_it(
    store: FileLogStore, tmp_path: Path
) -> None:
    fill(open_log(store), 100)
    infos = store.logs[TOPIC, 0].segments()
    crashed = crashed_copy(store, tmp_path / "crashed")
    (crashed / f"{TOPIC}-0" / f"{infos[1].base_offset:020d}.log").unlink()
    with reopened(crashed) as (_, log):
        assert log.end_offset == infos[1].base_offset
        assert f"offset {infos[1].base_offset} should follow" in str(log.recovery.reason)
        assert log.recovery.truncated_bytes == sum(info.size_bytes for info in infos[2:])
        append_one(log)


# ------------------------------------------------------------------------------ only what was not flushed


def test_recovery_checks_only_what_lies_above_the_recovery_point(store: FileLogStore, tmp_path: Path) -> None:
    log = open_log(store, BIG)
    fill(log, 2000, value=b"x" * 1000)
    flush(log)
    store.write_checkpoints()
    flushed = log.size_bytes
    fill(log, 10, value=b"x" * 1000)
    crashed = crashed_copy(store, tmp_path / "crashed")
    with reopened(crashed, BIG) as (_, again):
        assert again.end_offset == 2010
        assert again.recovery.scanned_bytes == log.size_bytes - flushed
        # Below the point: headers from the last index entry that was written (entries wait in groups of 128).
        assert again.probes.log_bytes < again.recovery.scanned_bytes + 128 * 8192
        assert again.flushed_offset == 2000


@pytest.mark.parametrize("without_epochs", [False, True])
@pytest.mark.parametrize(
    "garbage", [b"\xff" * 300, b"\x00" * 300, b"\x7f" * 7], ids=["ones", "zeros", "short"]
)
def test_garbage_right_behind_the_recovery_point_is_cut_and_no_reason_to_refuse(
    store: FileLogStore, tmp_path: Path, garbage: bytes, without_epochs: bool
) -> None:
    """What a power cut leaves when all was flushed (by a clean stop) and then more was written."""
    log = open_log(store, BIG)
    fill(log, 20)
    flush(log)
    store.write_checkpoints()
    crashed = crashed_copy(store, tmp_path / "crashed")
    with (crashed / f"{TOPIC}-0" / f"{0:020d}.log").open("ab") as file:
        file.write(garbage)
    if without_epochs:
        (crashed / f"{TOPIC}-0" / "leader-epoch-checkpoint").write_bytes(b"garbage")
    with reopened(crashed, BIG) as (_, again):
        assert again.end_offset == again.flushed_offset == 20
        assert again.recovery.truncated_bytes == len(garbage)
        append_one(again)


def test_after_a_clean_stop_nothing_is_checked_and_little_is_read(store: FileLogStore) -> None:
    for config, count in ((BIG, 50), (BIG, 2000)):
        partition = count
        fill(open_log(store, config, partition), count, value=b"x" * 1000)
    store.close_cleanly()
    again = FileLogStore(store.location)
    assert again.clean_stop
    reads = []
    for partition in (50, 2000):
        log = open_log(again, BIG, partition)
        assert (log.end_offset, log.recovery) == (partition, Recovery())
        reads.append(log.probes.snapshot())
        assert log.probes.log_bytes < 20_000
    assert reads[0]["log_reads"] == reads[1]["log_reads"]
    again.close()


def test_a_flush_without_a_clean_stop_leaves_nothing_to_check_either(
    store: FileLogStore, tmp_path: Path
) -> None:
    log = open_log(store)
    fill(log, 100)
    flush(log)
    store.write_checkpoints()
    with reopened(crashed_copy(store, tmp_path / "crashed")) as (again_store, again):
        assert not again_store.clean_stop
        assert again.end_offset == 100
        assert again.recovery == Recovery()
        assert again.segments() == log.segments()


def test_flushing_rolled_segments_moves_the_recovery_point_to_the_active_one(
    store: FileLogStore, tmp_path: Path
) -> None:
    log = open_log(store)
    fill(log, 100)
    before = log.has_unflushed_closed_segments
    flush(log, closed_only=True)
    assert (before, log.has_unflushed_closed_segments) == (True, False)
    assert log.flushed_offset == log.segments()[-1].base_offset
    store.write_checkpoints()
    with reopened(crashed_copy(store, tmp_path / "crashed")) as (_, again):
        assert again.recovery.scanned_bytes == log.segments()[-1].size_bytes


def test_the_mark_of_a_clean_stop_counts_for_one_start(store: FileLogStore) -> None:
    fill(open_log(store), 3)
    store.close_cleanly(broker_epoch=17)
    second = FileLogStore(store.location)
    assert (second.clean_stop, second.last_broker_epoch) == (True, 17)
    second.close()
    third = FileLogStore(store.location)
    assert (third.clean_stop, third.last_broker_epoch) == (False, -1)
    third.close()


# ---------------------------------------------------------------------------- below the recovery point


def flushed_copy(store: FileLogStore, target: Path) -> tuple[Path, FileLog]:
    log = open_log(store)
    fill(log, 100)
    flush(log)
    store.write_checkpoints()
    return crashed_copy(store, target), log


def test_a_log_that_lost_what_was_on_disk_is_refused_until_the_loss_is_accepted(
    store: FileLogStore, tmp_path: Path
) -> None:
    crashed, log = flushed_copy(store, tmp_path / "crashed")
    last = log.segments()[-1]
    path = crashed / f"{TOPIC}-0" / f"{last.base_offset:020d}.log"
    os.truncate(path, path.stat().st_size - 1)
    again = FileLogStore(crashed)
    with pytest.raises(LogFailed) as refusal:
        open_log(again)
    again.close()
    assert str(path) in str(refusal.value)
    assert "everything below offset 100 had reached the disk" in str(refusal.value)
    assert f"remove this partition's line from {RECOVERY_POINTS_FILE}" in str(refusal.value)
    (crashed / RECOVERY_POINTS_FILE).write_bytes(encode_offsets({}))
    with reopened(crashed) as (_, accepted):
        assert accepted.end_offset == 99
        assert accepted.recovery.truncated_bytes > 0


def test_a_folder_that_lost_its_log_files_is_refused(store: FileLogStore, tmp_path: Path) -> None:
    crashed, _ = flushed_copy(store, tmp_path / "crashed")
    for path in (crashed / f"{TOPIC}-0").glob("*.log"):
        path.unlink()
    again = FileLogStore(crashed)
    with pytest.raises(LogFailed, match="holds no log, although everything below offset 100"):
        open_log(again)
    again.close()


def test_damage_in_old_data_is_named_when_it_is_read_and_the_rest_stays_readable(
    store: FileLogStore, tmp_path: Path
) -> None:
    crashed, log = flushed_copy(store, tmp_path / "crashed")
    second = log.segments()[1]
    path = crashed / f"{TOPIC}-0" / f"{second.base_offset:020d}.log"
    data = bytearray(path.read_bytes())
    data[8:12] = b"\xff" * 4  # the first batch's length
    path.write_bytes(data)
    for index in (path.with_suffix(".index"), path.with_suffix(".timeindex")):
        index.write_bytes(b"")
    with reopened(crashed) as (_, again):
        with pytest.raises(LogFailed, match=f"{path} is damaged at byte 0: .* restore the file"):
            again.read(second.base_offset + 1, 1000, 100, at_least_one=True)
        assert again.read(0, 1 << 20, 100, at_least_one=True).size == log.segments()[0].size_bytes
        append_one(again)
        infos = again.segments()  # retention must be able to get rid of it
        assert infos[1].max_timestamp_ms == path.stat().st_mtime_ns // 1_000_000
        assert infos[0] == log.segments()[0]


def test_a_partition_whose_folder_is_gone_begins_again_with_a_warning(
    store: FileLogStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crashed, _ = flushed_copy(store, tmp_path / "crashed")
    shutil.rmtree(crashed / f"{TOPIC}-0")
    with caplog.at_level(logging.WARNING), reopened(crashed) as (_, log):
        assert (log.start_offset, log.end_offset) == (0, 0)
    assert "is gone: its log begins again" in caplog.text


# ------------------------------------------------------------------------------------------- truncation


def test_a_log_cut_below_the_recovery_point_opens_again_after_a_crash(
    store: FileLogStore, tmp_path: Path
) -> None:
    log = open_log(store)
    fill(log, 100)
    flush(log)
    store.write_checkpoints()
    log.truncate_to(50)
    with reopened(crashed_copy(store, tmp_path / "crashed")) as (_, again):
        assert again.end_offset == 50
        assert again.recovery.truncated_bytes == 0
        append_one(again)


def test_a_start_above_what_is_left_of_the_log_empties_it(store: FileLogStore, tmp_path: Path) -> None:
    log = open_log(store, BIG)
    fill(log, 100)
    log.advance_start(90)
    store.write_checkpoints()
    crashed = crashed_copy(store, tmp_path / "crashed")
    os.truncate(crashed / f"{TOPIC}-0" / f"{0:020d}.log", 1000)
    with reopened(crashed, BIG) as (_, again):
        assert (again.start_offset, again.end_offset, again.size_bytes) == (90, 90, 0)
        assert "below its start 90" in str(again.recovery.reason)
        append_one(again)
        assert offsets_of(read_all(again)) == [90]


# ------------------------------------------------------------------------------------------- snapshots


def test_snapshots_newer_than_the_log_are_removed(store: FileLogStore, tmp_path: Path) -> None:
    log = open_log(store, BIG)
    fill(log, 10)
    log.save_producers([ProducerEntry(1, 0, 9, 9, 0, 1)])
    crashed = crashed_copy(store, tmp_path / "crashed")
    path = crashed / f"{TOPIC}-0" / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size - 1)
    with reopened(crashed, BIG) as (_, again):
        assert again.load_producers() == (0, [])
        assert f"{10:020d}.snapshot" not in names(crashed / f"{TOPIC}-0")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_corrupt_snapshot_is_passed_over_for_an_older_one(
    store: FileLogStore, tmp_path: Path, damage: str
) -> None:
    log = open_log(store)
    older = ProducerEntry(1, 0, 9, 9, 0, 1)
    while len(log.segments()) < 3:
        batch = make_batch(log.end_offset, value=b"x" * 300)
        if log.roll_if_needed(len(batch), 1000):
            log.save_producers([older])
        append_one(log, value=b"x" * 300)
    log.save_producers([ProducerEntry(2, 0, 9, 9, 0, 1)])
    crashed = crashed_copy(store, tmp_path / "crashed")
    newest = crashed / f"{TOPIC}-0" / f"{log.end_offset:020d}.snapshot"
    data = bytearray(newest.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
    newest.write_bytes(b"" if damage == "empty" else data[:-1] if damage == "cut" else data)
    with reopened(crashed) as (_, again):
        assert again.load_producers() == (again.segments()[-1].base_offset, [older])
        assert newest.name not in names(newest.parent)


# ------------------------------------------------------------------------------------------- leftovers


def test_leftovers_of_interrupted_work_are_swept_away(store: FileLogStore) -> None:
    fill(open_log(store), 3)
    store.close()
    folder = Path(store.location) / f"{TOPIC}-0"
    (folder / f"{7:020d}.log.deleted").write_bytes(b"x")
    (folder / f"{9:020d}.index").write_bytes(b"x")
    (folder / "leader-epoch-checkpoint.tmp").write_bytes(b"x")
    (folder / "something-else").write_bytes(b"x")
    with reopened(Path(store.location)) as (again, log):
        assert log.end_offset == 3
        job = again.prepare_deletions()
        assert job is not None
        job.run()
    left = names(folder)
    assert "something-else" in left
    assert not left & {f"{7:020d}.log.deleted", f"{9:020d}.index", "leader-epoch-checkpoint.tmp"}


@pytest.mark.parametrize("contents", [b"", b"0\n5\n1 1\n", b"garbage", b"7\n0\n", b"0\n2\n3 10\n1 20\n"])
def test_a_damaged_epoch_file_is_rebuilt_from_the_log(store: FileLogStore, contents: bytes) -> None:
    log = open_log(store)
    for epoch in (1, 1, 4):
        append_one(log, epoch=epoch)
    store.close_cleanly()
    log_file(store).with_name("leader-epoch-checkpoint").write_bytes(contents)
    with reopened(Path(store.location)) as (_, again):
        assert again.latest_epoch == 4
        assert again.end_of_epoch(1) == (1, 2)
        flush(again)
    assert log_file(store).with_name("leader-epoch-checkpoint").read_bytes() == b"0\n2\n1 0\n4 2\n"


def test_without_a_readable_recovery_point_all_is_checked(
    store: FileLogStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(store)
    fill(log, 20)
    size = log.size_bytes
    store.close_cleanly()
    (Path(store.location) / RECOVERY_POINTS_FILE).write_bytes(b"nonsense\n1\n")
    with caplog.at_level(logging.WARNING), reopened(Path(store.location)) as (_, again):
        assert again.recovery == Recovery(scanned_bytes=size)
        assert again.end_offset == 20
    assert "is not used, so all logs are checked" in caplog.text
