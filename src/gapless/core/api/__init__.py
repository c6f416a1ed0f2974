"""One file per API or small family; importing this package registers them all."""

from gapless.core.api import (
    api_versions,
    cluster,
    configs,
    coordinators,
    delete_records,
    fetch,
    list_offsets,
    log_dirs,
    metadata,
    offset_for_leader_epoch,
    produce,
    producer_ids,
    topics,
)

__all__ = [
    "api_versions",
    "cluster",
    "configs",
    "coordinators",
    "delete_records",
    "fetch",
    "list_offsets",
    "log_dirs",
    "metadata",
    "offset_for_leader_epoch",
    "produce",
    "producer_ids",
    "topics",
]
