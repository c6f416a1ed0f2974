"""The producer: one word for what may happen to records, and one call to send them.

    >>> with Producer(bootstrap, source="orders-api") as producer:
    ...     receipt = producer.send("orders", b"3 apples", key=b"customer-7")
    ...     _ = receipt.wait(timeout=30)
    >>> receipt.identity.source, receipt.identity.sequence
    ('orders-api', 0)

Sync, async or with a callback:

    >>> def tell(error, receipt):
    ...     if error is not None:
    ...         compensate(receipt)
    >>> async def order():
    ...     await producer.send("orders", b"2 pears")
    >>> with Producer(bootstrap, source="orders-api", buffer_ms=1) as producer:
    ...     _ = producer.send("orders", b"a pear", wait=True)
    ...     _ = producer.send("orders", b"a plum", on_delivery=tell)
    ...     asyncio.run(order())
    ...     producer.flush(timeout=30)
    0

What must survive crashes and outages goes through a spool on local disk:

    >>> with Producer(bootstrap, "orders-api", semantics="exactly-once", spool=folder) as producer:
    ...     receipt = producer.send("orders", b"1 melon").stored()  # from here on it will be sent
    ...     several = producer.send_many("orders", [b"1 fig", b"2 figs"])  # together, or not at all
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER
from gapless.client.giving import GivenHeaders, as_bytes, check_timestamp, header_pairs
from gapless.client.producing.port import OnDelivery, Sender
from gapless.client.producing.receipts import Receipt
from gapless.client.producing.settings import Settings, settle
from gapless.client.records import Headers
from gapless.client.semantics import Semantics
from gapless.client.spool import Spool
from gapless.errors import GaplessError, UsageError

CLOSE_TIMEOUT_S = 30.0

_living: weakref.WeakSet[Producer] = weakref.WeakSet()


class Producer:
    """Sends records to any Kafka. For any thread; not to be used after a fork.

    `semantics` is `at-most-once`, `at-least-once` (the default) or `exactly-once`, or None for settings of
    your own that no word promises anything about. Every setting can be given as well, as an argument or as
    a property of librdkafka; what contradicts the word is refused.

    - `acks`: 0, 1 or "all"; `idempotence`; `retries` (3) and `backoff_ms` (300); `delivery_timeout_ms`: how
      long a record is tried (see settings.py for what it is if not given).
    - The buffer: `buffer_ms`: how long a record may wait for others to go with it; `buffer_messages`: how
      many may wait; `batch_messages`: how many go together. `when_full`: "block" (for ever), a number of
      seconds (block, then raise BufferFull), "drop" (and count in `dropped`), "spool".
    - `spool`: a folder. `spool_mode`: "fallback" (a record goes there when its attempts are used up or the
      buffer is full) or "always" (first there, then to the cluster). `spool_max_bytes` and `spool_when_full`
      ("refuse" or "block") bound it; `keep`: how long sent records stay.
    - `transaction_ms`, `transaction_records`: when a transaction of exactly-once closes.
    - `seal_every_s`: how often the ledger is told what was acknowledged (0: never).
    """

    def __init__(
        self,
        bootstrap: str,
        source: str,
        semantics: str | None = Semantics.AT_LEAST_ONCE,
        *,
        acks: int | str | None = None,
        idempotence: bool | None = None,
        retries: int | None = None,
        backoff_ms: int | None = None,
        delivery_timeout_ms: int | None = None,
        buffer_ms: float | None = None,
        buffer_messages: int | None = None,
        batch_messages: int | None = None,
        when_full: Literal["block", "drop", "spool"] | float | None = None,
        spool: str | Path | None = None,
        spool_mode: Literal["always", "fallback"] | None = None,
        spool_max_bytes: int | None = None,
        spool_when_full: Literal["refuse", "block"] = "refuse",
        keep: str | float = "24h",
        transaction_ms: float = 100,
        transaction_records: int = 10_000,
        seal_every_s: float = 10,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        given = {
            "acks": acks,
            "idempotence": idempotence,
            "retries": retries,
            "backoff_ms": backoff_ms,
            "delivery_timeout_ms": delivery_timeout_ms,
            "buffer_ms": buffer_ms,
            "buffer_messages": buffer_messages,
            "batch_messages": batch_messages,
            "when_full": when_full,
            "spool": spool,
            "spool_mode": spool_mode,
            "spool_max_bytes": spool_max_bytes,
            "spool_when_full": spool_when_full,
            "keep": keep,
            "transaction_ms": transaction_ms,
            "transaction_records": transaction_records,
            "seal_every_s": seal_every_s,
            "properties": properties,
        }
        self.settings = settle(bootstrap, source, semantics, given)
        self._sender = _new_sender(self.settings)
        self._partitions = self._sender.partitions
        self._take = self._sender.send
        self._is_forked = False
        try:
            self._sender.start()
        except BaseException:
            self._sender.close(0)  # lets the spool's folder go
            raise
        self._partitions.start()
        _living.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        *,
        key: bytes | str | None = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
        wait: bool = False,
    ) -> Receipt:
        """Take a record; raises if it cannot be taken. What becomes of it, the receipt tells.

        `on_delivery(error, receipt)` is called once, on a thread of the producer's, with None when the
        cluster has the record (with exactly-once: when it is committed). `wait=True`: return only then.
        """
        if value.__class__ is not bytes:
            value = as_bytes("value", value)
        if key is not None and key.__class__ is not bytes:
            key = as_bytes("key", key)
        if headers is not None:
            headers = _headers(headers)
        if timestamp_ms is not None:
            check_timestamp(timestamp_ms)
        if on_delivery is not None:
            _check_callback(on_delivery)
        if partition is not None:
            self._partitions.check(topic, partition)
        if wait:
            self._sender.refuse_in_callback("send(wait=True)")
        receipt = self._take(topic, partition, value, key, headers, timestamp_ms, on_delivery)
        if wait:
            receipt.wait()
        return receipt

    def send_many(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
        wait: bool = False,
    ) -> Sequence[Receipt]:
        """Take records that are there at once: as `send` for each, in their order, and a receipt for each.

        All have the same headers and timestamp. Without keys, all go to one partition. With
        `spool_mode="always"` and with exactly-once they are stored together or not at all, in one write, and
        that is much quicker than a call for each; if it raises, none was taken. Otherwise they are taken one
        after the other, a little quicker than by a call for each; what raises is the first that cannot be.
        """
        if isinstance(values, (str, bytes)) or isinstance(keys, (str, bytes)):
            raise UsageError("send_many takes a list of values, and of keys: for one record there is send")
        given = _all_bytes("value", values)
        given_keys = None if keys is None else _all_bytes("key", keys)
        if given_keys is not None and len(given_keys) != len(given):
            raise UsageError(
                f"{len(given)} values came with {len(given_keys)} keys: give one for each, or None"
            )
        if headers is not None:
            headers = _headers(headers)
        if timestamp_ms is not None:
            check_timestamp(timestamp_ms)
        if on_delivery is not None:
            _check_callback(on_delivery)
        if partition is not None:
            self._partitions.check(topic, partition)
        if self._is_forked:
            self._refuse()
        if wait:
            self._sender.refuse_in_callback("send_many(wait=True)")
        if not given:
            return []
        receipts = self._sender.send_many(
            topic, partition, given, given_keys, headers, timestamp_ms, on_delivery
        )
        if wait:
            for receipt in receipts:
                receipt.wait()
        return receipts

    def flush(self, timeout: float | None = None) -> int:
        """Wait until all that was sent before is settled; how many records are not when time is up."""
        if self._is_forked:
            self._refuse()
        return self._sender.flush(timeout)

    def close(self, timeout: float | None = CLOSE_TIMEOUT_S) -> int:
        """Flush, seal and end; how many records the cluster was not sent in time.

        With a spool those are in it, and the next producer with that folder sends them. Without one they have
        failed, as their receipts tell. The last seal is tried for the rest of the timeout, 5 s at least. If
        it cannot be written, a warning is logged, and a spool keeps it for the next producer.

        In a forked process it does nothing: all is the parent's to send.
        """
        if self._is_forked:
            return 0
        _living.discard(self)
        self._partitions.stop()
        return self._sender.close(timeout)

    @property
    def source(self) -> str:
        return self.settings.source

    @property
    def incarnation(self) -> bytes:
        """Of the identities of new records: a spool's in `always` mode, else this producer's own."""
        return self._sender.incarnation

    @property
    def dropped(self) -> int:
        """Records that were dropped because the buffer was full."""
        return self._sender.dropped

    @property
    def failure(self) -> GaplessError | None:
        """Why nothing can be sent any more, if so."""
        return self._sender.failure

    @property
    def problem(self) -> str | None:
        """What keeps records from being sent at the moment, as far as anybody has said."""
        return self._sender.problem

    def _refuse(self, *_: object) -> Receipt:
        raise UsageError("the process was forked: make a producer in each process, after the fork")


def _new_sender(settings: Settings) -> Sender:
    """The path that the settings ask for."""
    if settings.spool is None:
        from gapless.client.producing.direct import DirectSender

        return DirectSender(settings)
    spool = Spool(
        settings.spool,
        settings.source,
        max_bytes=settings.spool_max_bytes,
        when_full=settings.spool_when_full,
        keep_s=settings.keep_s,
    )
    try:
        return _new_spooling_sender(settings, spool)
    except BaseException:
        spool.close()
        raise


def _new_spooling_sender(settings: Settings, spool: Spool) -> Sender:
    if settings.semantics is Semantics.EXACTLY_ONCE:
        from gapless.client.producing.transactional import TransactionalSender

        return TransactionalSender(
            spool,
            settings.source,
            settings.librdkafka(),
            transaction_ms=settings.transaction_ms,
            transaction_records=settings.transaction_records,
            seal_every_s=settings.seal_every_s,
        )
    refuse_if_claimed(spool.claimed)
    if settings.spool_mode == "always":
        from gapless.client.producing.spooling import SpoolingSender

        return SpoolingSender(settings, spool)
    from gapless.client.producing.direct import DirectSender

    return DirectSender(settings, spool)


def refuse_if_claimed(claimed: bool) -> None:
    """Not to be sent but in transactions: else the cluster's position is no longer true."""
    if claimed:
        raise UsageError(
            "this spool is drained exactly-once: its position is on the cluster; "
            'give semantics="exactly-once", or begin with a new folder'
        )


def _all_bytes(what: str, given: Iterable[object]) -> Sequence[bytes | None]:
    try:
        each = iter(given)
    except TypeError:
        raise UsageError(f"send_many takes a list of {what}s, not {type(given).__name__}") from None
    found: tuple[Any, ...] = tuple(each)
    return found if set(map(type, found)) == {bytes} else [as_bytes(what, one) for one in found]


def _check_callback(given: object) -> None:
    if not callable(given):
        raise UsageError(f"on_delivery is called with an error and a receipt: {given!r} cannot be called")


def _headers(given: GivenHeaders) -> Headers:
    headers = header_pairs(given)
    for name, _ in headers:
        if name in (SOURCE_HEADER, SEQUENCE_HEADER):
            raise UsageError(f"header {name!r} carries a record's identity: choose another name")
    return headers


def _disown() -> None:
    """librdkafka's threads do not come along into a forked process: its producers are of no use there."""
    for producer in list(_living):
        producer._is_forked = True
        producer._take = producer._refuse  # type: ignore[assignment]  # it only raises


os.register_at_fork(after_in_child=_disown)
