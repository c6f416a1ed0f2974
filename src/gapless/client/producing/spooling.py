"""The path through an `always` spool without transactions: nothing is lost; after a crash some may repeat.

A record is accepted when it is in the spool; a thread sends from there with an idempotent producer. Crashes
of the process and outages of the cluster cost nothing but time. A crash repeats what was acknowledged and not
yet noted locally, with the same identities in the same partitions: readers that know them see each once.
So no identity may ever be given twice: an old copy of the folder is refused (guarding.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from gapless.client.producing.draining import Drain, DrainSettling
from gapless.client.producing.guarding import Guard
from gapless.client.producing.intake import Intake
from gapless.client.producing.partitions import Partitions
from gapless.client.producing.polling import Poller
from gapless.client.producing.port import OnDelivery
from gapless.client.producing.receipts import LeftInSpool, Receipt
from gapless.client.producing.sealer import Sealer, last_seal_timeout_s, read_kept_seals
from gapless.client.producing.settings import Settings
from gapless.client.producing.upkeep import Promised, Upkeep
from gapless.client.records import Headers
from gapless.client.spool import Spool, SpoolFailed, SpoolRestored
from gapless.errors import GaplessError, UsageError

START_WAIT_S = 3.0
"""How long a start waits to hear from the cluster whether the folder is an old copy."""

_logger = logging.getLogger("gapless.client")


class SpoolingSender:
    """See `Sender` in port.py. `close` closes the spool."""

    dropped = 0

    def __init__(self, settings: Settings, spool: Spool) -> None:
        self.spool = spool
        self.incarnation = spool.incarnation
        self._stopped: GaplessError | None = None
        self._is_closed = False
        self.poller = Poller(settings.librdkafka(), f"poll-{settings.source}", self._chore)
        self.partitions = Partitions(self.poller.count_partitions, settings.spool)
        self._settling = DrainSettling(spool, self.poller)
        self._intake = Intake(spool, settings.source, settings.properties, self.partitions, self._settling)
        self._promised = Promised(settings.source)
        self._promised.recover(spool.incarnation, spool.sequences_at(spool.sent))
        self._drain = Drain(
            spool,
            settings.source,
            self.poller,
            settings.backoff_ms / 1000,
            self._settling,
            self._promised.note,
            Guard(spool, settings.source, settings.connection()),
            self._refuse_folder,
        )
        self._sealer = Sealer(self.poller, settings.connection(), spool)
        self._seals = settings.seal_every_s > 0
        if self._seals:
            self._promised.add_kept(read_kept_seals(spool))
        self._upkeep = Upkeep(settings.source, settings.seal_every_s, self._seal)

    @property
    def failure(self) -> GaplessError | None:
        return self._stopped

    @property
    def problem(self) -> str | None:
        """What keeps records from being sent at the moment; they wait in the spool."""
        return self._drain.problem or self.poller.problem

    @property
    def callback_errors(self) -> int:
        return self.poller.callback_errors

    @property
    def spooled(self) -> int:
        """Records in the spool that are not known to be sent."""
        return self._drain.left

    def start(self) -> None:
        """Begin. Raises SpoolRestored if that can be told soon; while the cluster is away records wait."""
        is_new = not self.spool.stored
        self.poller.start()
        self._drain.start()
        self._upkeep.start()
        if not is_new:
            self._drain.wait_begun(START_WAIT_S)
        if self._stopped is not None:
            self.close(0.0)
            raise self._stopped

    def send(
        self,
        topic: str,
        partition: int | None,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Receipt:
        """Take a record into the spool."""
        if self._stopped is not None:
            raise self._stopped
        return self._intake.take(topic, partition, value, key, headers, timestamp_ms, on_delivery)

    def send_many(
        self,
        topic: str,
        partition: int | None,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Sequence[Receipt]:
        """Take records into the spool together."""
        if self._stopped is not None:
            raise self._stopped
        return self._intake.take_many(topic, partition, values, keys, headers, timestamp_ms, on_delivery)

    def refuse_in_callback(self, what: str) -> None:
        self.poller.refuse_in_callback(what)

    def flush(self, timeout_s: float | None) -> int:
        self.refuse_in_callback("flush()")
        return self._drain.wait_for(self.spool.end, timeout_s)

    def close(self, timeout_s: float | None) -> int:
        self.refuse_in_callback("close()")
        if self._is_closed:
            return self._drain.left
        self._is_closed = True
        close_by = None if timeout_s is None else time.monotonic() + timeout_s
        refusal = self._stopped
        self._stopped = self._stopped or UsageError("the producer is closed")
        self._upkeep.stop()
        self.flush(None if close_by is None else max(close_by - time.monotonic(), 0.0))
        self._drain.stop()
        self.poller.purge(in_flight=True)
        if self._seals and refusal is None:
            self._sealer.write_last(self._promised.take("close"), last_seal_timeout_s(close_by))
        left = self._drain.left
        try:
            self.spool.close()
        finally:
            self._settling.end(
                refusal
                or LeftInSpool("the producer was closed before the record was sent: it is in the spool")
            )
            self.poller.stop()
        return left

    def _refuse_folder(self, error: SpoolRestored) -> None:
        """It is an old copy: what was taken into it since it was opened is told of."""
        _logger.error("%s", error)
        self._stopped = error
        try:
            self.spool.close()  # nobody must wait for room in it any more
        except SpoolFailed as refused:
            _logger.warning("%s", refused)
        self._settling.tell_refused()
        self._settling.end(error)

    def _chore(self) -> None:
        self._settling.tell_refused()  # the drain may be waiting for the cluster
        if self.poller.fatal:
            self.poller.renew()  # what it had not confirmed, the drain sends again

    def _seal(self) -> None:
        if self._stopped is None:
            self._promised.seal(self._sealer.write)
