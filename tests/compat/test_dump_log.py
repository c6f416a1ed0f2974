"""The files on disk are Kafka's own: its dump tool reads them, and finds them sound."""

from __future__ import annotations

import re

import pytest

from .admins.confluent import ConfluentAdmin
from .clients import Sending
from .clients.confluent import Confluent
from .conftest import NewTopic
from .jvm import run_tool
from .peers import Peer
from .sample import CODECS, numbered

SMALLEST_SEGMENT_BYTES = 1_048_576

pytestmark = pytest.mark.java_clients


def test_dump_log_reads_batches_records_and_indexes(
    peer: Peer, reader: Confluent, new_topic: NewTopic, bootstrap: str
) -> None:
    """Claim A1: a partition has a folder of its own. Indexes agree with batches of every compression.

    What is looked at is a closed segment: the index of the one that grows may be on its way to the disk.
    """
    if not peer.data_dirs:
        pytest.skip("the tests cannot read files of brokers that they did not start")
    topic = new_topic(2, {"segment.bytes": str(SMALLEST_SEGMENT_BYTES)})
    for codec in CODECS:
        reader.produce(
            topic, numbered(100, size_bytes=500), Sending(codec, idempotent=True, batch_bytes=8_000)
        )
    reader.produce(topic, numbered(300, size_bytes=5_000), Sending(idempotent=True, batch_bytes=20_000))
    leader = ConfluentAdmin(bootstrap).describe(topic)[0].leader
    folder = peer.data_dirs[leader] / f"{topic}-0"
    assert len(list(folder.glob("*.log"))) == 2
    segment = folder / "00000000000000000000.log"
    files = ",".join(str(segment.with_suffix(suffix)) for suffix in (".log", ".index", ".timeindex"))
    dumped = run_tool("kafka-dump-log", "--files", files, "--print-data-log")
    batches = re.findall(r"^baseOffset: .* isvalid: (\w+)", dumped, re.MULTILINE)
    assert set(batches) == {"true"}
    assert set(re.findall(r"compresscodec: (\w+)", dumped)) == set(CODECS)
    offsets = [int(number) for number in re.findall(r"^\| offset: (\d+) ", dumped, re.MULTILINE)]
    assert len(offsets) > 500
    assert offsets == list(range(len(offsets)))
    payloads = [int(number) for number in re.findall(r"payload: (\d{8})", dumped)]
    assert payloads == [*(list(range(100)) * 5), *range(len(offsets) - 500)]
    assert len(re.findall(r"^offset: \d+ position: \d+", dumped, re.MULTILINE)) > 10
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", dumped, re.MULTILINE)) > 10
    for complaint in ("Mismatches in", "Non-consecutive offsets in", "Found "):
        assert complaint not in dumped
