"""A producer's own disk: records lie there, in order and durable, until the cluster has them."""

from __future__ import annotations

from gapless.client.spool.errors import (
    NotKept,
    SpoolClosed,
    SpoolDamaged,
    SpoolError,
    SpoolFailed,
    SpoolFull,
    SpoolInUse,
    SpoolOfAnother,
    SpoolRestored,
)
from gapless.client.spool.records import Spooled, Ticket
from gapless.client.spool.spool import Spool
from gapless.client.spool.streams import StreamKey

__all__ = [
    "NotKept",
    "Spool",
    "SpoolClosed",
    "SpoolDamaged",
    "SpoolError",
    "SpoolFailed",
    "SpoolFull",
    "SpoolInUse",
    "SpoolOfAnother",
    "SpoolRestored",
    "Spooled",
    "StreamKey",
    "Ticket",
]
