"""Wishes to change the cluster's shape, and what is decided about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gapless.core.records import MetadataRecord


class Decision(NamedTuple):
    """What a change would write, and how to answer once it is written and replayed."""

    records: list[MetadataRecord]
    answer: Callable[[], Any]


class Change(NamedTuple):
    """A wish to change the cluster's shape: decided anew whenever the image has moved on."""

    decide: Callable[[], Decision]
    done: Callable[[Any], None]
    failed: Callable[[str], None]
