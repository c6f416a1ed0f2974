"""Disks that fill up or refuse: a clear error, nothing acknowledged is lost, and the broker lives on."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.wire.errors import ErrorCode
from tests.broker.conftest import BrokerMaker
from tests.broker.process import up
from tests.broker.raw import RawClient, batch_of
from tests.broker.test_connections import create_topic
from tests.storage.helpers import parse_all

MB = 2**20
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


class SmallDisk:
    """A file system in memory."""

    def __init__(self, path: Path, size_mb: int) -> None:
        self.path = path
        path.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs")

    def grow(self, size_mb: int) -> None:
        self._mount("-o", f"remount,size={size_mb}m")

    def fill(self, path: Path) -> None:
        """Leave not a block free."""
        with path.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def make_readonly(self) -> None:
        self._mount("-o", "remount,ro")

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)

    def _mount(self, *arguments: str) -> None:
        result = subprocess.run(["mount", *arguments, self.path], capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"file systems cannot be mounted here: {result.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    mounted = SmallDisk(tmp_path / "disk", size_mb=6)
    yield mounted
    mounted.unmount()


def fill_up(client: RawClient, topic: str, record_bytes: int) -> tuple[int, str]:
    """Write until that fails; how many records were acknowledged, and the error's message."""
    for number in range(1000):
        result = client.produce(topic, batch_of(b"record %d " % number + bytes(record_bytes)))
        if result.error_code:
            assert result.error_code == STORAGE_ERROR
            return number, result.error_message
    raise AssertionError("the disk does not fill up")


def count_readable(client: RawClient, topic: str) -> int:
    offset = 0
    while True:
        fetched = client.fetch(topic, offset, max_bytes=4 * MB)
        assert fetched.error_code == 0
        if not fetched.records:
            return offset
        assert b"record %d " % offset in fetched.records
        offset = parse_all(fetched.records)[-1].next_offset


def test_a_full_disk_loses_nothing_that_was_acknowledged(disk: SmallDisk, start_broker: BrokerMaker) -> None:
    broker = start_broker(disk.path / "data")
    with broker.connect() as client:
        client.metadata("filling", "other")
        create_topic(client, "strict", flush_messages="1")
        for topic in ("other", "strict"):
            assert client.produce(topic, batch_of(b"record 0 ")).error_code == 0
        acknowledged, message = fill_up(client, "filling", MB // 2)
        assert acknowledged > 5
        assert "No space left on device" in message
        assert "free space" in message  # and what to do about it
        # The partition stays offline: what is small enough for the rest of the disk is refused as well.
        assert client.produce("filling", batch_of(b"tiny")).error_code == STORAGE_ERROR
        for topic in ("other", "strict"):
            result = client.produce(topic, batch_of(bytes(MB - 200)))
            assert (result.error_code, "No space" in result.error_message) == (STORAGE_ERROR, True)
        assert count_readable(client, "filling") == acknowledged
        assert count_readable(client, "other") == count_readable(client, "strict") == 1
        partition = client.metadata("filling").topics[0].partitions[0]
        assert (partition.leader_id, partition.offline_replicas) == (1, [1])
    assert "No space left on device" in broker.wait_until_said("partition filling-0 is offline")
    assert broker.running

    disk.grow(64)
    broker.restart()
    with broker.connect() as client:
        assert count_readable(client, "filling") == acknowledged
        for topic, offset in (("filling", acknowledged), ("other", 1), ("strict", 1)):
            result = client.produce(topic, batch_of(b"record %d " % offset + bytes(MB // 2)))
            assert (result.error_code, result.base_offset) == (0, offset)
    assert broker.stop_and_tell() == 0
    assert "Traceback" not in broker.said()


def test_the_shape_of_a_cluster_cannot_change_on_a_full_disk(
    disk: SmallDisk, start_broker: BrokerMaker
) -> None:
    broker = start_broker(disk.path / "data")
    with broker.connect() as client:
        client.metadata("filling")
        fill_up(client, "filling", MB // 2)
        disk.fill(disk.path / "filler")
        assert client.metadata("new").topics[0].error_code != 0
        assert client.metadata("filling").topics[0].error_code == 0
    broker.wait_until_said("cannot write the metadata journal")
    assert broker.stop_and_tell() != 0  # it could not be clean
    result = up("--port", "0", "--data", broker.data_dir)
    assert result.returncode != 0
    assert "Traceback" not in broker.said() + result.stderr
    assert "full" in result.stderr.splitlines()[-1]
    (disk.path / "filler").unlink()
    broker.start()
    with broker.connect() as client:
        assert client.metadata("new").topics[0].error_code == 0


def test_a_limit_on_file_sizes_is_met_like_a_full_disk(start_broker: BrokerMaker) -> None:
    broker = start_broker(prefix=("/bin/sh", "-c", 'ulimit -f 6000; exec "$@"', "sh"))  # blocks of 512 bytes
    with broker.connect() as client:
        client.metadata("filling", "other")
        acknowledged, message = fill_up(client, "filling", MB // 2)
        assert acknowledged == 5
        assert "ulimit -f" in message
        assert count_readable(client, "filling") == acknowledged
        assert client.produce("other", batch_of(b"record 0 ")).error_code == 0
    broker.wait_until_said("partition filling-0 is offline")


def test_a_data_folder_that_cannot_be_written_is_told(disk: SmallDisk) -> None:
    disk.make_readonly()
    result = up("--port", "0", "--data", disk.path / "data")
    assert result.returncode != 0
    (line,) = result.stderr.splitlines()
    assert "Read-only file system" in line
