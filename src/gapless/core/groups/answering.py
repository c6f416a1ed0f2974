"""Replies that rest on records in several shards: given once all of them are committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.core.contract import Request
from gapless.core.groups.replies import coordinator_error
from gapless.core.shard import COMMIT_TIMEOUT_MS, Shard
from gapless.wire.errors import ErrorCode

if TYPE_CHECKING:
    from gapless.core.node import Node


class Part(NamedTuple):
    """A part of a reply: the shard it rests on, and how to turn it into an error."""

    shard: Shard
    fail: Callable[[ErrorCode], None]


def answer_together(node: Node, request: Request, message: Any, parts: Sequence[Part]) -> Any | None:
    """The message if all parts are committed, or None, and the request is answered later."""
    ends = [part.shard.partition.log.end_offset for part in parts]
    waiting = list(zip(parts, ends, strict=True))

    def poll(timed_out: bool) -> Any | None:
        nonlocal waiting
        still_waiting = []
        for part, end_offset in waiting:
            error = _why_not(part.shard, end_offset, timed_out)
            if error is None:
                still_waiting.append((part, end_offset))
            elif error is not ErrorCode.NONE:
                part.fail(coordinator_error(error))
        waiting = still_waiting
        return None if waiting else message

    reply = poll(False)
    if reply is None:
        names = dict.fromkeys(part.shard.partition.name for part, _ in waiting)
        node.waiting.add(request, node.now_ms + COMMIT_TIMEOUT_MS, list(names), poll)
    return reply


def _why_not(shard: Shard, end_offset: int, timed_out: bool) -> ErrorCode | None:
    """NONE once committed, an error if it will not be; None if that is not known yet."""
    if shard.resigned:
        return ErrorCode.NOT_COORDINATOR
    if shard.partition.high_watermark >= end_offset:
        return ErrorCode.NONE
    if shard.partition.offline is not None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.REQUEST_TIMED_OUT if timed_out else None
