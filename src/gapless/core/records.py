"""Metadata records: every change to the cluster's shape, as the journal keeps it.

Commands decide records; only replaying a record changes an image (`core/image.py`). On the journal a
record is a small JSON object, so that a person can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class TopicCreated:
    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A partition's whole assignment. A new `leader_epoch` means that leadership was taken anew."""

    topic_id: UUID
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConfigSet:
    """One dynamic setting of a topic or a broker; `value` None removes it."""

    resource_type: int
    resource_name: str
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsReserved:
    """All producer ids below `next_producer_id` belong to some broker's block."""

    next_producer_id: int


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A broker's life begins: where clients reach it."""

    node_id: int
    host: str
    port: int


MetadataRecord = (
    TopicCreated | TopicDeleted | PartitionChanged | ConfigSet | ProducerIdsReserved | BrokerRegistered
)

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        TopicCreated,
        TopicDeleted,
        PartitionChanged,
        ConfigSet,
        ProducerIdsReserved,
        BrokerRegistered,
    )
}


def to_json(record: MetadataRecord) -> dict[str, Any]:
    """The record as JSON-ready values, its kind under "kind"."""
    values = {key: str(value) if isinstance(value, UUID) else value for key, value in asdict(record).items()}
    return {"kind": type(record).__name__, **values}


def from_json(values: Mapping[str, Any]) -> MetadataRecord:
    """The inverse of `to_json`."""
    fields = dict(values)
    kind = _KINDS[fields.pop("kind")]
    if "topic_id" in fields:
        fields["topic_id"] = UUID(fields["topic_id"])
    for name in ("replicas", "isr"):
        if name in fields:
            fields[name] = tuple(fields[name])
    record: MetadataRecord = kind(**fields)
    return record
