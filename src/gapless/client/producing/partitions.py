"""Which partition a record belongs to: chosen before it is stored anywhere, and never again.

A key's partition is the one that Java's clients choose (murmur2), so that records of one key meet in one
partition whoever sends them. Records without a key go to one partition for a short run, then to another, so
that batches fill.

How many partitions a topic has is asked from the cluster and asked again now and then. A folder remembers it,
so that a producer that starts while the cluster is away can still choose as before.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from struct import unpack_from

from gapless.errors import GaplessError, Unreachable, UsageError

RUN_RECORDS = 512
RUN_S = 0.01
STEP_RECORDS = 8
"""After so many it is looked whether the run is over."""
REFRESH_S = 300.0
ASK_S = 10.0
ASK_AGAIN_S = 1.0  # where an earlier answer will do
MEMORY_FILE = "topics.json"
_CACHED_KEYS = 1 << 16

_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF

_clock = time.monotonic
_logger = logging.getLogger("gapless.client")

CountPartitions = Callable[[str, float], int]
"""Asks the cluster, for so many seconds at most; raises Unreachable if it does not answer,
UsageError if there is no such topic."""


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, as an unsigned number of 32 bits."""
    length = len(key)
    words = length >> 2
    hashed = _SEED ^ length
    for word in unpack_from(f"<{words}I", key):
        mixed = word * _MULTIPLIER & _MASK
        hashed = (hashed * _MULTIPLIER & _MASK) ^ ((mixed ^ mixed >> 24) * _MULTIPLIER & _MASK)
    rest = length & 3
    if rest:
        hashed = (hashed ^ int.from_bytes(key[-rest:], "little")) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _MASK
    return hashed ^ hashed >> 15


@lru_cache(_CACHED_KEYS)
def _positive_hash(key: bytes) -> int:
    return murmur2(key) & _POSITIVE


def _is_name(topic: object) -> bool:
    """Whether librdkafka can be asked for it; what else a topic may be called, the cluster says."""
    return isinstance(topic, str) and "\0" not in topic and topic.encode(errors="ignore").decode() == topic


class _Topic:
    """One topic's partitions, and the run that records without a key are on."""

    __slots__ = ("count", "current", "left", "taken", "until_s")

    def __init__(self, count: int) -> None:
        self.count = count
        self.current = random.randrange(count)
        self.taken = -1
        self.left = 0
        self.until_s = 0.0

    def go_on(self, records: int = STEP_RECORDS) -> int:
        """Where the next step of the run goes, when so many records have gone on it since the last one."""
        self.left -= records
        if self.left < 0 or _clock() > self.until_s:
            self.current = (self.current + 1) % self.count
            self.left = RUN_RECORDS - STEP_RECORDS
            self.until_s = _clock() + RUN_S
        return self.current


class Partitions:
    """Chooses partitions. Thread-safe; a run may be a little longer when several threads are on it."""

    def __init__(self, count_partitions: CountPartitions, folder: Path | None = None) -> None:
        self._ask = count_partitions
        self._file = None if folder is None else folder / MEMORY_FILE
        self._topics: dict[str, _Topic] = {}
        self._lock = threading.Lock()
        self._remembered = self._recall()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._refresh_now_and_then, name="gapless-topics", daemon=True)

    def start(self) -> None:
        """Look again every few minutes whether topics have grown."""
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()

    def _refresh_now_and_then(self) -> None:
        while not self._ending.wait(REFRESH_S):
            self.refresh_all()

    def choose(self, topic: str, key: bytes | None) -> int:
        """Raises Unreachable if the number of partitions was never known and the cluster is away."""
        known = self._topics.get(topic)
        if known is None:
            known = self._learn(topic)
        if key is not None:
            return _positive_hash(key) % known.count
        known.taken = taken = known.taken + 1
        return known.current if taken % STEP_RECORDS else known.go_on()

    def go_on(self, topic: str, records: int = STEP_RECORDS) -> int:
        """The partition of the next `records` without a key: one call instead of many."""
        return (self._topics.get(topic) or self._learn(topic)).go_on(records)

    def check(self, topic: str, partition: int) -> int:
        """A partition of the caller's own choice; asks the cluster again if it seems not to exist."""
        if isinstance(partition, bool) or not isinstance(partition, int):
            raise UsageError(f"a partition is a number, not {partition!r}")
        known = self._topics.get(topic) or self._learn(topic)
        if 0 <= partition < known.count:
            return partition
        self.refresh(topic)
        if 0 <= partition < self._topics[topic].count:
            return partition
        raise UsageError(f"{topic} has no partition {partition}: it has 0 to {self._topics[topic].count - 1}")

    def refresh(self, topic: str) -> None:
        """Ask again; a cluster that does not answer changes nothing."""
        try:
            self._set(topic, self._ask(topic, ASK_S))
        except Unreachable:
            return

    def refresh_all(self) -> None:
        for topic in list(self._topics):
            try:
                self.refresh(topic)
            except GaplessError:  # the topic was deleted: sending to it will say so
                continue

    def _learn(self, topic: str) -> _Topic:
        if not _is_name(topic):
            raise UsageError(f"{topic!r} cannot name a topic: give text")
        remembered = self._remembered.get(topic)
        try:
            count = self._ask(topic, ASK_S if remembered is None else ASK_AGAIN_S)
        except Unreachable as away:
            if remembered is None:
                raise Unreachable(
                    f"how many partitions {topic} has is not known, and the cluster does not say: {away}"
                ) from away
            count = remembered
        return self._set(topic, count)

    def _set(self, topic: str, count: int) -> _Topic:
        with self._lock:
            known = self._topics.get(topic)
            if known is None or known.count != count:
                known = self._topics[topic] = _Topic(count)
            if self._file is not None and self._remembered.get(topic) != count:
                self._remembered[topic] = count
                self._remember(self._file)
            return known

    def _recall(self) -> dict[str, int]:
        """What an earlier producer with this folder knew. An unreadable file is as good as none."""
        try:
            content = json.loads(self._file.read_bytes()) if self._file is not None else {}
            return {str(topic): int(count) for topic, count in content.items() if int(count) > 0}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _remember(self, file: Path) -> None:
        written = file.with_suffix(".new")
        try:
            written.write_text(json.dumps(self._remembered, indent=1, sort_keys=True))
            written.replace(file)
        except OSError as error:  # a help for a later start, no reason to refuse a record
            _logger.warning("%s could not be written: %s", file, error.strerror or error)
