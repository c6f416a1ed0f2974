"""The small files of a data folder are what Apache Kafka writes, and damage in them is named."""

from __future__ import annotations

from uuid import UUID

import pytest

from gapless.core.log import ProducerEntry
from gapless.storage import formats
from gapless.storage.epochs import EpochHistory
from gapless.storage.snapshots import CorruptSnapshot, decode_snapshot, encode_snapshot, snapshot_name

ID = UUID(bytes=bytes(range(16)))


def test_checkpoints_are_lines_after_a_version_and_a_count() -> None:
    offsets = {("orders", 0): 5, ("a-b.c_d", 12): 2**62}
    data = formats.encode_offsets(offsets)
    assert data == b"0\n2\norders 0 5\na-b.c_d 12 4611686018427387904\n"
    assert formats.decode_offsets(data) == offsets
    epochs = [(0, 0), (3, 17)]
    assert formats.encode_epochs(epochs) == b"0\n2\n0 0\n3 17\n"
    assert formats.decode_epochs(b"0\n2\n0 0\n3 17\n") == epochs
    assert formats.decode_offsets(b"") == {}
    assert formats.decode_offsets(b"0\n0\n") == {}


@pytest.mark.parametrize(
    "data",
    [
        b"1\n0\n",
        b"0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na x 1\n",
        b"0\n1\na 0 1_0\n",
        b"\xff\xfe",
        b"0\nx\n",
    ],
)
def test_a_damaged_checkpoint_is_named(data: bytes) -> None:
    with pytest.raises(formats.Malformed):
        formats.decode_offsets(data)


@pytest.mark.parametrize("data", [b"0\n2\n3 5\n2 9\n", b"0\n2\n1 5\n2 4\n", b"0\n1\n1\n", b"0\n1\n1 2 3\n"])
def test_a_damaged_epoch_file_is_named(data: bytes) -> None:
    with pytest.raises(formats.Malformed):
        formats.decode_epochs(data)


def test_ids_are_url_safe_base64_without_padding() -> None:
    assert formats.encode_uuid(ID) == "AAECAwQFBgcICQoLDA0ODw"
    assert formats.decode_uuid("AAECAwQFBgcICQoLDA0ODw") == ID
    assert formats.encode_partition_metadata(ID) == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert formats.decode_partition_metadata(formats.encode_partition_metadata(ID) + b"\n") == ID
    for damaged in (b"", b"version: 0\n", b"version: 0\ntopic_id: x", b"version: 0\ntopic_id: \xff\xff"):
        with pytest.raises(formats.Malformed):
            formats.decode_partition_metadata(damaged)
    assert not any(formats.encode_uuid(formats.random_uuid()).startswith("-") for _ in range(500))


def test_meta_properties_are_read_as_java_writes_them() -> None:
    meta = formats.MetaProperties("4L6g3nShT-eMCtK--X86sw", 7, ID)
    assert formats.decode_meta(formats.encode_meta(meta)) == meta
    by_java = (
        b"#\n#Sun Nov 15 12:00:00 UTC 2026\ncluster.id=4L6g3nShT-eMCtK--X86sw\nversion=1\n"
        b"directory.id=AAECAwQFBgcICQoLDA0ODw\nnode.id=7\n"
    )
    assert formats.decode_meta(by_java) == meta
    with pytest.raises(formats.Malformed, match=r"lacks cluster\.id"):
        formats.decode_meta(b"version=1\nnode.id=1\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\n")
    with pytest.raises(formats.Malformed, match="version 0"):
        formats.decode_meta(by_java.replace(b"version=1", b"version=0"))


def test_the_mark_of_a_clean_stop_is_json() -> None:
    assert formats.encode_clean_stop(12) == b'{"version":0,"brokerEpoch":12}'
    assert formats.decode_clean_stop(b'{"version":0,"brokerEpoch":12}') == 12
    assert formats.decode_clean_stop(b"") == -1
    assert formats.decode_clean_stop(b"[]") == -1


def test_snapshots_have_kafkas_bytes() -> None:
    entry = ProducerEntry(1, 2, 3, 4, 5, 6, 7, 8)
    data = encode_snapshot([entry])
    fields = ["0000000000000001", "0002", "00000003", "0000000000000004", "00000005", "0000000000000006"]
    fields += ["00000007", "0000000000000008"]
    assert data.hex() == "".join(["0001", data[2:6].hex(), "00000001", *fields])
    assert decode_snapshot(data) == [entry]
    assert decode_snapshot(encode_snapshot([])) == []
    assert snapshot_name(42) == "00000000000000000042.snapshot"


def test_every_flipped_bit_and_every_cut_of_a_snapshot_is_found() -> None:
    data = encode_snapshot([ProducerEntry(1, 2, 3, 4, 5, 6), ProducerEntry(2, 2, 3, 4, 5, 6)])
    for size in range(len(data)):
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(data[:size])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(bytes(damaged))


def test_the_epoch_history_follows_cuts_at_both_ends() -> None:
    history = EpochHistory([(1, 0), (3, 10), (4, 20)])
    history.begin(4, 25)
    history.begin(2, 25)
    assert not history.changed
    history.cut_start(10)
    assert history.entries == [(3, 10), (4, 20)]
    history.cut_start(15)
    assert history.entries == [(3, 15), (4, 20)]
    history.cut_end(20)
    assert (history.entries, history.latest) == ([(3, 15)], 3)
    assert history.end_of(3, 18) == (3, 18)
    assert history.end_of(2, 18) == (2, 15)
    history.clear()
    assert (history.latest, history.end_of(9, 1)) == (-1, (-1, -1))
