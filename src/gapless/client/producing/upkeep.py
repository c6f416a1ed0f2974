"""What a producer without transactions has to seal, and the thread that seals it at intervals.

The thread is its own, because writing a seal may wait for the cluster.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gapless.client.formats import Interval, Seal
from gapless.client.producing.seals import Acknowledged, seals_of
from gapless.client.spool import Spooled, StreamKey


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

    def add_kept(self, seals: Sequence[Seal]) -> None:
        """Add seals of an earlier producer that could not write them."""
        self._recovered += seals

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

    def seal(self, write: Callable[[Sequence[Seal]], Sequence[Seal]]) -> None:
        """Seal what is not promised yet. `write` returns what it could not write: the next seals get that."""
        unwritten: Sequence[Seal] = self.take("interval")
        try:
            unwritten = write(unwritten)
        finally:  # whatever `write` raises
            self.put_back(unwritten)

    def put_back(self, seals: Sequence[Seal]) -> None:
        """These could not be written."""
        for seal in seals:
            if seal.reason == "recovered":
                self._recovered.append(seal)
            else:
                self.of(seal.incarnation).put_back(seal.intervals)


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
