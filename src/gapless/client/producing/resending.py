"""Records that a topic has lost, sent again from the spool that still has them: all of them, or none.

    with Resending(folder, {"bootstrap.servers": "localhost:9092"}) as resending:
        ...                                    # now find out what is missing
        resending.send({incarnation: [Interval("orders", 0, 17, 19)]})

They are the same records, with the identity, partition and time that they had. One transaction carries
them and a seal that tells of it (`repaired`), so that an audit knows why they come late. Whoever begins later
fences whoever began before: of two that repair the same, one fails and has sent nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import KafkaException

from gapless.client.formats import Interval
from gapless.client.producing.ledger import Ledger
from gapless.client.producing.seals import Acknowledged, seals_of
from gapless.client.producing.session import Ended, Session
from gapless.client.spool.contents import kept
from gapless.client.spool.inspect import status
from gapless.client.spool.records import Spooled
from gapless.errors import Unreachable

REASON = "repaired"
Wanted = Mapping[bytes, Iterable[Interval]]
"""By incarnation."""


class Resent(NamedTuple):
    """What was sent again."""

    records: int
    found: dict[bytes, tuple[Interval, ...]]
    """By incarnation. What else was wanted is not in the spool."""


class Resending:
    """Sends from one spool's folder. Its producer may have it open."""

    def __init__(self, folder: str | Path, properties: Mapping[str, Any], *, timeout_s: float = 60.0) -> None:
        self._folder = Path(folder)
        self.source = status(folder).source
        self._give_up_at = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._ledger = Ledger(properties)
        self._session = Session(
            properties,
            self.source,
            transactional_id=f"gapless.repair.{self.source}",
            wanted=lambda: time.monotonic() < self._give_up_at,
            patience_s=timeout_s,
        )

    def __enter__(self) -> Self:
        try:
            self._ledger.ensure_topic()
            self._session.init()
        except (KafkaException, Ended) as error:
            self._end()
            raise self._failed(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def send(self, wanted: Wanted) -> Resent:
        """Send those of the wanted records that the spool has."""
        self._give_up_at = time.monotonic() + self._timeout_s
        records = list(self._find(wanted))
        found: dict[bytes, Acknowledged] = {}
        for record in records:
            found.setdefault(record.incarnation, Acknowledged()).note(
                record.topic, record.partition, record.sequence
            )
        intervals = {incarnation: each.take() for incarnation, each in found.items()}
        if records:
            try:
                self._commit(records, intervals)
            except (KafkaException, Ended) as error:
                raise self._failed(error) from None
        return Resent(len(records), intervals)

    def _find(self, wanted: Wanted) -> Iterable[Spooled]:
        places: dict[tuple[bytes, str, int], list[Interval]] = {}
        for incarnation, intervals in wanted.items():
            for each in intervals:
                places.setdefault((incarnation, each.topic, each.partition), []).append(each)
        taken: set[tuple[bytes, str, int, int]] = set()
        for record in kept(self._folder) if places else ():
            place = (record.incarnation, record.topic, record.partition)
            is_wanted = any(each.first <= record.sequence <= each.last for each in places.get(place, ()))
            name = (*place, record.sequence)
            if is_wanted and name not in taken:  # one that fell back to the spool may be there twice
                taken.add(name)
                yield record

    def _commit(self, records: list[Spooled], intervals: Mapping[bytes, tuple[Interval, ...]]) -> None:
        self._session.begin()
        self._session.produce(records)
        for incarnation, each in intervals.items():
            self._session.seal(seals_of(self.source, incarnation, REASON, each, {}))
        self._session.commit()

    def _end(self) -> None:
        self._session.discard()
        self._ledger.rest()

    def _failed(self, error: KafkaException | Ended) -> Unreachable:
        why = error.args[0].str() if isinstance(error, KafkaException) else "time is up"
        return Unreachable(f"nothing of {self.source!r} was sent again: {why}")
