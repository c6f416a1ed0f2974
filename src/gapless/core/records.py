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
    flushed: bool = False
    """Whether its own setting has every record flushed before it is acknowledged, from the first one on."""


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A partition's whole assignment. A new `leader_epoch` means that leadership was taken anew."""

    topic_id: UUID
    partition: int
    leader: int
    """-1 while nobody leads."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0
    """Counts every change of this partition, of its leader or not."""
    eligible: tuple[int, ...] = ()
    """Not in sync, but known to hold all that was committed (KIP-966): they may lead if the set is empty."""
    last_leader: int = -1
    """Who led when nobody could any more."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    """What a reassignment under way brings to `replicas`, and takes away in the end."""


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
    """A broker's life begins: where clients and other brokers reach it."""

    node_id: int
    host: str
    port: int
    epoch: int = 0
    """The journal's version with this record: a later life has a larger one."""
    fenced: bool = False
    """Found dead or hung: it leads nothing and is in no in-sync set until it registers anew."""


@dataclass(frozen=True, slots=True)
class BrokerRemoved:
    """A broker left for good."""

    node_id: int


@dataclass(frozen=True, slots=True)
class ControllerElected:
    """From now on this broker watches over the others and elects leaders."""

    node_id: int
    epoch: int


MetadataRecord = (
    TopicCreated
    | TopicDeleted
    | PartitionChanged
    | ConfigSet
    | ProducerIdsReserved
    | BrokerRegistered
    | BrokerRemoved
    | ControllerElected
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
        BrokerRemoved,
        ControllerElected,
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
    for name in ("replicas", "isr", "eligible", "adding", "removing"):
        if name in fields:
            fields[name] = tuple(fields[name])
    record: MetadataRecord = kind(**fields)
    return record
