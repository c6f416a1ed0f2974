"""The files on disk are Kafka's own: its dump tool reads them, and finds them sound."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from .clients import Sending
from .clients.confluent import Confluent
from .conftest import NewTopic, Require
from .jvm import run_tool
from .peers import Peer
from .sample import CODECS, numbered

pytestmark = pytest.mark.apache


@pytest.fixture
def data_dir(peer: Peer, require: Require) -> Path:
    require("apache-kafka")
    if peer.data_dir is None:
        pytest.skip("the broker's files are not ours to read")
    return peer.data_dir


def test_dump_log_reads_batches_records_and_indexes(
    data_dir: Path, reader: Confluent, new_topic: NewTopic
) -> None:
    """Claim A1: a partition has a folder of its own. Indexes agree with batches of every compression."""
    topic = new_topic(2)
    for codec in CODECS:
        reader.produce(
            topic, numbered(100, size_bytes=500), Sending(codec, idempotent=True, batch_bytes=8_000)
        )
    folder = data_dir / f"{topic}-0"
    segment = folder / "00000000000000000000.log"
    files = ",".join(str(segment.with_suffix(suffix)) for suffix in (".log", ".index", ".timeindex"))
    dumped = run_tool("kafka-dump-log", "--files", files, "--print-data-log")
    batches = re.findall(r"^baseOffset: .* isvalid: (\w+)", dumped, re.MULTILINE)
    assert batches
    assert set(batches) == {"true"}
    codecs = Counter(re.findall(r"compresscodec: (\w+)", dumped))
    assert set(codecs) == set(CODECS)
    offsets = [int(number) for number in re.findall(r"^\| offset: (\d+) ", dumped, re.MULTILINE)]
    assert offsets == list(range(500))
    payloads = [int(number) for number in re.findall(r"payload: (\d{8})", dumped)]
    assert payloads == list(range(100)) * 5
    assert re.search(r"^offset: \d+ position: \d+", dumped, re.MULTILINE), "the offset index has entries"
    assert re.search(r"^timestamp: \d+ offset: \d+", dumped, re.MULTILINE), "the time index has entries"
    for complaint in ("Mismatches in", "Non-consecutive offsets in", "Found "):
        assert complaint not in dumped
