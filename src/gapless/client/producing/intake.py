"""The way into a spool, for the senders that put every record there first.

Here a record gets its partition and the time at which it was made; what could never be sent is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from gapless.client.producing.limits import SizeLimit
from gapless.client.producing.partitions import Partitions
from gapless.client.producing.port import OnDelivery
from gapless.client.producing.receipts import Receipt, Stream
from gapless.client.producing.settling import Settling
from gapless.client.records import Headers
from gapless.client.spool import Spool


def now_ms() -> int:
    """The time as records have it."""
    return time.time_ns() // 1_000_000


class Intake:
    """Of one producer. For any thread."""

    def __init__(
        self,
        spool: Spool,
        source: str,
        properties: Mapping[str, Any],
        partitions: Partitions,
        settling: Settling,
    ) -> None:
        self._spool = spool
        self._source = source
        self._size_limit = SizeLimit(properties, source)
        self._partitions = partitions
        self._settling = settling
        self._streams: dict[tuple[str, int], Stream] = {}

    def take(
        self,
        topic: str,
        partition: int | None,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Receipt:
        """See `Sender.send`."""
        self._size_limit.check(value, key, headers)
        where = self._partitions.choose(topic, key) if partition is None else partition
        made_at_ms = timestamp_ms or now_ms()  # however long it lies in the spool
        return self._settling.receipt(
            self._stream(topic, where),
            lambda: self._spool.append(topic, where, value, key, headers or (), made_at_ms),
            on_delivery,
        )

    def take_many(
        self,
        topic: str,
        partition: int | None,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Sequence[Receipt]:
        """See `Sender.send_many`."""
        self._size_limit.check_all(values, keys, headers)
        where: int | list[int]
        if partition is not None:
            where = partition
        elif keys is None:
            where = self._partitions.choose(topic, None)
        else:
            where = [self._partitions.choose(topic, key) for key in keys]
        made_at_ms = timestamp_ms or now_ms()
        return self._settling.receipts(
            repeat(self._stream(topic, where), len(values))
            if isinstance(where, int)
            else [self._stream(topic, each) for each in where],
            lambda: self._spool.append_many(topic, where, values, keys, headers or (), made_at_ms),
            on_delivery,
        )

    def _stream(self, topic: str, partition: int) -> Stream:
        stream = self._streams.get((topic, partition))
        if stream is None:
            stream = Stream(self._source, self._spool.incarnation, topic, partition)
            stream = self._streams.setdefault((topic, partition), stream)
        return stream
