"""Which segments of a log are too old, or too much."""

from __future__ import annotations

from gapless.core.configs import TopicConfig
from gapless.core.log import Log


def first_kept(log: Log, config: TopicConfig, now_ms: int) -> int:
    """Where the log should begin: after the last segment that goes whole."""
    return max(_expired_by_time(log, config, now_ms), _expired_by_size(log, config))


def _expired_by_time(log: Log, config: TopicConfig, now_ms: int) -> int:
    keep_from = log.start_offset
    if config.retention_ms < 0:
        return keep_from
    for segment in log.segments():
        if segment.max_timestamp_ms < 0:
            continue  # it has no records, or none with a time: it goes with the next that is too old
        if now_ms - segment.max_timestamp_ms <= config.retention_ms:
            break
        keep_from = segment.end_offset
    return keep_from


def _expired_by_size(log: Log, config: TopicConfig) -> int:
    keep_from = log.start_offset
    if config.retention_bytes < 0:
        return keep_from
    segments = log.segments()
    excess = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    for segment in segments[:-1]:
        if excess < segment.size_bytes:
            break
        excess -= segment.size_bytes
        keep_from = segment.end_offset
    return keep_from
