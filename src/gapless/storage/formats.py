"""The small text files of a data folder, in Apache Kafka's formats: from and to bytes, no files here.

leader-epoch-checkpoint           version, count, then one `epoch offset` per line
recovery-point-offset-checkpoint  version, count, then one `topic partition offset` per line
log-start-offset-checkpoint       the same
partition.metadata                `version: 0` and `topic_id: <base64>`
meta.properties                   Java properties: version, cluster.id, node.id, directory.id
.kafka_cleanshutdown              JSON with the broker's epoch
boot-id                           the machine's boot id when a broker last ran here; Kafka has no such file
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID, uuid4

EPOCHS_FILE = "leader-epoch-checkpoint"
RECOVERY_POINTS_FILE = "recovery-point-offset-checkpoint"
START_OFFSETS_FILE = "log-start-offset-checkpoint"
CLEANED_OFFSETS_FILE = "cleaner-offset-checkpoint"
PARTITION_FILE = "partition.metadata"
META_FILE = "meta.properties"
CLEAN_STOP_FILE = ".kafka_cleanshutdown"
BOOT_FILE = "boot-id"

Partition = tuple[str, int]


class Malformed(ValueError):
    """A file that is not in its format; the message says why."""


# ------------------------------------------------------------------------------------------- checkpoints


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """leader-epoch-checkpoint."""
    return _encode_lines([f"{epoch} {offset}" for epoch, offset in entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    """Entries in ascending order, or `Malformed`."""
    entries = []
    for line in _decode_lines(data):
        fields = line.split()
        if len(fields) != 2:
            raise Malformed(f"{line!r} is not an epoch and an offset")
        entries.append((_number(fields[0]), _number(fields[1])))
    ascending = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(entries))
    if not ascending:
        raise Malformed("its epochs do not ascend")
    return entries


def encode_offsets(offsets: Mapping[Partition, int]) -> bytes:
    """recovery-point-offset-checkpoint, log-start-offset-checkpoint or cleaner-offset-checkpoint."""
    return _encode_lines([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def decode_offsets(data: bytes) -> dict[Partition, int]:
    """The offset of each partition, or `Malformed`."""
    offsets = {}
    for line in _decode_lines(data):
        fields = line.split()
        if len(fields) != 3:
            raise Malformed(f"{line!r} is not a topic, a partition and an offset")
        offsets[fields[0], _number(fields[1])] = _number(fields[2])
    return offsets


def _encode_lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in ["0", str(len(lines)), *lines]).encode()


def _decode_lines(data: bytes) -> list[str]:
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise Malformed("it is not text") from None
    if not lines:
        return []  # Kafka creates the file empty before it first writes it
    if lines[0] != "0" or len(lines) < 2:
        raise Malformed(f"its version {lines[0]!r} is not known, or all else is missing")
    if len(lines) - 2 != _number(lines[1]):
        raise Malformed(f"it announces {lines[1]} entries and has {len(lines) - 2}")
    return lines[2:]


def _number(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII):
        raise Malformed(f"{text!r} is not a number")
    return int(text)


# -------------------------------------------------------------------------------------------------- ids


def encode_uuid(value: UUID) -> str:
    """A UUID as Kafka writes it: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    """The reverse of `encode_uuid`, or `Malformed`."""
    try:
        raw = urlsafe_b64decode(text + "==")
    except (Base64Error, ValueError):
        raw = b""
    if len(raw) != 16:
        raise Malformed(f"{text!r} is not a base64 id of 16 bytes")
    return UUID(bytes=raw)


def random_uuid() -> UUID:
    """One that no tool takes for an option: Kafka avoids a leading dash, too."""
    while True:
        value = uuid4()
        if not encode_uuid(value).startswith("-"):
            return value


def encode_partition_metadata(topic_id: UUID) -> bytes:
    """partition.metadata."""
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> UUID:
    """The topic's id, or `Malformed`."""
    match = re.fullmatch(rb"version:\s*\d+\s+topic_id:\s*(\S+)\s*", data)
    if match is None:
        raise Malformed("it has no version and topic_id")
    return decode_uuid(match[1].decode(errors="replace"))


# ------------------------------------------------------------------------------------------ data folder


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """Whose data folder it is."""

    cluster_id: str
    node_id: int
    directory_id: UUID


def encode_meta(meta: MetaProperties) -> bytes:
    """meta.properties."""
    return (
        "#\n"
        f"cluster.id={meta.cluster_id}\n"
        f"directory.id={encode_uuid(meta.directory_id)}\n"
        f"node.id={meta.node_id}\n"
        "version=1\n"
    ).encode()


def decode_meta(data: bytes) -> MetaProperties:
    """The reverse of `encode_meta`, or `Malformed`."""
    values = {}
    for line in data.decode(errors="replace").splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            key, _, value = line.partition("=")
            values[key.strip()] = re.sub(r"\\(.)", r"\1", value.strip())
    missing = [key for key in ("version", "cluster.id", "node.id", "directory.id") if not values.get(key)]
    if missing:
        raise Malformed(f"it lacks {', '.join(missing)}")
    if values["version"] != "1":
        raise Malformed(f"its version {values['version']} is not known")
    return MetaProperties(
        values["cluster.id"], _number(values["node.id"]), decode_uuid(values["directory.id"])
    )


def encode_clean_stop(broker_epoch: int) -> bytes:
    """.kafka_cleanshutdown."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_stop(data: bytes) -> int:
    """The epoch of the broker that stopped; -1 if it is not known."""
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return -1
    return epoch if isinstance(epoch, int) else -1
