"""What a producer without transactions promises: the acknowledged is sealed, at intervals and at the end.

On a thread of its own, because writing a seal may wait for the cluster.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from gapless.client.formats import LEDGER_TOPIC, POSITION_PARTITION, Interval, Seal
from gapless.client.producing.ledger import Ledger, LedgerMissing
from gapless.client.producing.polling import Poller
from gapless.client.producing.seals import Acknowledged, seals_of
from gapless.client.spool import Spooled, StreamKey

_SERVE_S = 0.05

_logger = logging.getLogger("gapless.client")


class Promised:
    """What is acknowledged and to be sealed, of all incarnations that a producer sends for. Thread-safe."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._acknowledged: dict[bytes, Acknowledged] = {}
        self._recovered: list[Seal] = []
        self._lock = threading.Lock()

    def of(self, incarnation: bytes) -> Acknowledged:
        with self._lock:
            return self._acknowledged.setdefault(incarnation, Acknowledged())

    def recover(self, own: bytes, following: Mapping[StreamKey, int]) -> None:
        """Earlier processes have sent all below these sequences, whether or not they came to seal it.

        Only of the spool's own incarnation: of others it got some records and knows nothing of the rest.
        """
        intervals: list[Interval] = []
        counts: Counter[str] = Counter()
        for (incarnation, topic, partition), sequence in sorted(following.items()):
            if incarnation == own and sequence:
                intervals.append(Interval(topic, partition, 0, sequence - 1))
                counts[topic] += sequence
        if intervals:
            self._acknowledged[own] = Acknowledged(counts)
            self._recovered += seals_of(self._source, own, "recovered", tuple(intervals), counts)

    def note(self, records: Sequence[Spooled]) -> None:
        """Records that came out of a spool in its order."""
        runs: dict[StreamKey, list[int]] = {}
        for _, incarnation, topic, partition, sequence, *_ in records:
            run = runs.setdefault((incarnation, topic, partition), [sequence, sequence - 1])
            if run[1] + 1 != sequence:
                self.of(incarnation).note_run(topic, partition, *run)
                run[0] = sequence
            run[1] = sequence
        for (incarnation, topic, partition), run in runs.items():
            self.of(incarnation).note_run(topic, partition, *run)

    def take(self, reason: str) -> list[Seal]:
        """Seals for all that none promises yet."""
        with self._lock:
            taken, self._recovered = self._recovered, []
            for incarnation, acknowledged in self._acknowledged.items():
                taken += acknowledged.take_seals(self._source, incarnation, reason)
            return taken

    def put_back(self, seals: Sequence[Seal]) -> None:
        """These could not be written."""
        for seal in seals:
            if seal.reason == "recovered":
                self._recovered.append(seal)
            else:
                self.of(seal.incarnation).put_back(seal.intervals)


class Sealer:
    """Writes seals to the ledger, with the same producer as the records."""

    def __init__(self, poller: Poller, connection: Mapping[str, Any]) -> None:
        self._poller = poller
        self._connection = connection
        self._ledger_is_there = False
        self._complained = False

    def write(self, seals: Sequence[Seal], timeout_s: float) -> list[Seal]:
        """Those that were not written, if so; the reason is logged the first time."""
        unwritten = list(seals)
        if not unwritten:
            return []
        try:
            self._ensure_ledger()
            give_up_at = time.monotonic() + timeout_s
            for seal in seals:
                self._poller.producer.produce(
                    LEDGER_TOPIC,
                    seal.to_bytes(),
                    seal.key(),
                    POSITION_PARTITION,
                    on_delivery=_Written(unwritten, seal),
                )
            while unwritten and time.monotonic() < give_up_at:
                self._poller.serve(_SERVE_S)
        except (KafkaException, BufferError, LedgerMissing) as error:
            if not self._complained:
                self._complained = True
                _logger.warning("seals cannot be written, so audits will not know of promises: %s", error)
        return list(unwritten)  # reports may yet shorten the other one while it is walked through

    def _ensure_ledger(self) -> None:
        if not self._ledger_is_there:
            ledger = Ledger({"log_level": 0, **self._connection})
            try:
                ledger.ensure_topic()
            finally:
                ledger.rest()
            self._ledger_is_there = True


class _Written:
    """Told by librdkafka what became of a seal."""

    def __init__(self, unwritten: list[Seal], seal: Seal) -> None:
        self._unwritten = unwritten
        self._seal = seal

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._unwritten.remove(self._seal)


class Upkeep:
    """The thread. `seal` is called every `seal_every_s` seconds; 0: never."""

    def __init__(self, source: str, seal_every_s: float, seal: Callable[[], None]) -> None:
        self._seal_every_s = seal_every_s
        self._seal = seal
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gapless-upkeep-{source}", daemon=True)

    def start(self) -> None:
        if self._seal_every_s:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._seal_every_s):
            self._seal()
