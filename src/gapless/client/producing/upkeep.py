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

SEAL_S = 5.0
"""How long a seal at an interval is waited for; what was not written by then goes into the next one."""
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

    def write(self, seals: Sequence[Seal], timeout_s: float = SEAL_S, last: bool = False) -> list[Seal]:
        """Those that were not written, if so. The reason is logged the first time, and always of the last."""
        if not seals:
            return []
        open_ones, unwritten = list(seals), list(seals)
        problem = f"no answer in {timeout_s:g} s"
        try:
            self._ensure_ledger()
            give_up_at = time.monotonic() + timeout_s
            for seal in seals:
                self._poller.producer.produce(
                    LEDGER_TOPIC,
                    seal.to_bytes(),
                    seal.key(),
                    POSITION_PARTITION,
                    on_delivery=_Told(seal, open_ones, unwritten),
                )
            while open_ones and time.monotonic() < give_up_at:
                self._poller.serve(_SERVE_S)
            if not open_ones:
                problem = "the cluster does not take it"
        except (KafkaException, BufferError, LedgerMissing) as error:
            problem = str(error)
        if unwritten and (last or not self._complained):
            self._complained = True
            which = "the last seal" if last else "a seal"
            _logger.warning("%s was not written, so audits will miss promises: %s", which, problem)
        return list(unwritten)  # reports may yet shorten the other one while it is walked through

    def _ensure_ledger(self) -> None:
        if not self._ledger_is_there:
            ledger = Ledger({"log_level": 0, **self._connection})
            try:
                ledger.ensure_topic()
            finally:
                ledger.rest()
            self._ledger_is_there = True


class _Told:
    """By librdkafka, what became of a seal."""

    def __init__(self, seal: Seal, open_ones: list[Seal], unwritten: list[Seal]) -> None:
        self._seal = seal
        self._open_ones = open_ones
        self._unwritten = unwritten

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        self._open_ones.remove(self._seal)
        if error is None:
            self._unwritten.remove(self._seal)


def time_for_last_seal(close_timeout_s: float | None, unsent: int) -> float:
    """Nobody comes after the last seal. If all records arrived, the cluster is there: it is worth waiting."""
    if unsent:
        return SEAL_S
    return float("inf") if close_timeout_s is None else max(SEAL_S, close_timeout_s)


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
