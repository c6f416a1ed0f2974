"""Gapless: a Kafka-compatible message pipeline that loses nothing, repeats nothing, and can prove it.

from gapless import Consumer, Producer
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The client library's front door; it is imported only by those who ask for it."""
    if name not in ("Consumer", "Producer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gapless import client

    return getattr(client, name)
