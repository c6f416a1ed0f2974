"""Old segments go, by age, by size and by request: for readers at once, and from the disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gapless.wire.errors import ErrorCode
from gapless.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from tests.broker.process import Broker, wait_until
from tests.broker.raw import RawClient, batch_of
from tests.broker.test_connections import create_topic

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One that looks for what is too old all the time, and deletes files at once."""
    config = {"log.retention.check.interval.ms": "20", "log.segment.delete.delay.ms": "0"}
    with Broker(config=config) as shared:
        yield shared


def fill(client: RawClient, topic: str, count: int, *, hours_ago: float = 0) -> None:
    timestamp_ms = int(time.time() * 1000 - hours_ago * HOUR_MS)
    for number in range(count):
        batch = batch_of(b"record %d " % number + bytes(400), timestamp_ms=timestamp_ms)
        assert client.produce(topic, batch).error_code == 0


def earliest(client: RawClient, topic: str) -> int:
    asked_type = ListOffsetsRequest.ListOffsetsTopic
    partition = asked_type.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-2)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[asked_type(name=topic, partitions=[partition])]
    )
    offset: int = client.call(request, 5, ListOffsetsResponse).topics[0].partitions[0].offset
    return offset


def delete_records(client: RawClient, topic: str, offset: int) -> tuple[int, int]:
    topic_type = DeleteRecordsRequest.DeleteRecordsTopic
    partition = topic_type.DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[topic_type(name=topic, partitions=[partition])], timeout_ms=10_000)
    result = client.call(request, 1, DeleteRecordsResponse).topics[0].partitions[0]
    return result.error_code, result.low_watermark


def files_of(broker: Broker, topic: str) -> list[Path]:
    """The segments that lie on the disk, those marked as deleted included."""
    return sorted(path for path in (broker.logs_dir / f"{topic}-0").iterdir() if ".log" in path.name)


def size_of(broker: Broker, topic: str) -> int:
    size = 0
    for path in files_of(broker, topic):
        with suppress(FileNotFoundError):  # the broker deletes files at the same time
            size += path.stat().st_size
    return size


def test_segments_go_when_all_their_records_are_too_old(broker: Broker) -> None:
    with broker.connect() as client:
        create_topic(client, "aged", segment_bytes="2000", retention_ms=str(HOUR_MS))
        fill(client, "aged", 20, hours_ago=0.5)
        before = files_of(broker, "aged")
        assert len(before) > 3
        create_topic(client, "older", segment_bytes="2000", retention_ms=str(HOUR_MS))
        fill(client, "older", 20, hours_ago=2)
        fill(client, "older", 1)
        # The young one keeps its whole segment, in which old ones may come before it.
        start = int(files_of(broker, "older")[-1].name[:20])
        assert 16 <= start <= 20
        wait_until(lambda: earliest(client, "older") == start, "old segments are gone")
        assert client.fetch("older", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert client.fetch("older", start).error_code == 0
        assert b"record 0 " in client.fetch("older", 20).records  # the young one
        wait_until(lambda: int(files_of(broker, "older")[0].name[:20]) == start, "their files are gone")
        assert earliest(client, "aged") == 0  # nothing of it is too old yet
        assert files_of(broker, "aged") == before


def test_the_oldest_segments_go_when_a_partition_is_too_large(broker: Broker) -> None:
    with broker.connect() as client:
        create_topic(client, "sized", segment_bytes="2000", retention_bytes="5000")
        fill(client, "sized", 40)

        wait_until(lambda: size_of(broker, "sized") <= 5000 + 2000, "it is small enough")
        start = earliest(client, "sized")
        assert 20 < start < 40
        assert b"record %d " % start in client.fetch("sized", start).records
        assert b"record 39 " in client.fetch("sized", 39).records


def test_deleted_records_are_gone_for_readers_at_once_and_from_the_disk_soon(broker: Broker) -> None:
    with broker.connect() as client:
        create_topic(client, "deleted", segment_bytes="2000")
        fill(client, "deleted", 20)
        count = len(files_of(broker, "deleted"))
        assert delete_records(client, "deleted", 13) == (0, 13)
        assert earliest(client, "deleted") == 13
        assert client.fetch("deleted", 12).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert client.fetch("deleted", 13).log_start_offset == 13
        wait_until(lambda: len(files_of(broker, "deleted")) < count, "their files are gone")
        assert delete_records(client, "deleted", 5) == (0, 13)  # nothing comes back
        assert delete_records(client, "deleted", 21)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
        assert delete_records(client, "deleted", -1) == (0, 20)
        assert client.produce("deleted", batch_of(b"next")).base_offset == 20
        wait_until(lambda: len(files_of(broker, "deleted")) == 1, "only the active segment is left")


def test_what_was_deleted_stays_deleted_over_a_crash(broker: Broker) -> None:
    with broker.connect() as client:
        create_topic(client, "buried", segment_bytes="2000")
        fill(client, "buried", 10)
        assert delete_records(client, "buried", 7) == (0, 7)
    checkpoint = broker.logs_dir / "log-start-offset-checkpoint"
    wait_until(lambda: checkpoint.exists() and "buried 0 7" in checkpoint.read_text(), "it is written down")
    broker.kill()
    broker.start()
    with broker.connect() as client:
        assert earliest(client, "buried") == 7


def test_a_deleted_topic_leaves_nothing_on_the_disk(broker: Broker) -> None:
    from tests.broker.test_flush import delete_topic

    with broker.connect() as client:
        create_topic(client, "doomed", partitions=3)
        client.produce("doomed", batch_of(b"record"))
        assert (broker.logs_dir / "doomed-2").is_dir()
        delete_topic(client, "doomed")
    wait_until(lambda: not list(broker.logs_dir.glob("doomed-*")), "its folders are gone")
