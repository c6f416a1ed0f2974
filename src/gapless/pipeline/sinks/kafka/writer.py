"""What a task of the Kafka sink does with its slot: records and marker in one transaction, or nothing.

First the task makes sure that it is the only one. A producer that this worker has kept from an earlier batch
is the only one as long as the marker names it: whoever wrote after it would have left another name, and who
only *began* after it has fenced it, so that it cannot even begin. Otherwise a new producer fences all others.
Only then is the marker read, and only stable: it tells whether to write or to skip.

Rows can be read once, so a transaction that is lost fails the task, and Spark tries it again.
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from gapless.errors import Unreachable
from gapless.pipeline.sinks.kafka.changes import change_marker
from gapless.pipeline.sinks.kafka.clients import Target
from gapless.pipeline.sinks.kafka.markers import Marker, Register, now_ms
from gapless.pipeline.sinks.kafka.sender import Fenced, InDoubt, Sender, TransactionLost
from gapless.pipeline.sinks.port import SinkRefused
from gapless.pipeline.slots import MarkerMismatch, Slot, Verdict, judge
from gapless.pipeline.tasks import Done

if TYPE_CHECKING:
    from pyarrow import RecordBatch

MAX_KEPT = 16
"""Producers that a worker process keeps; each has some threads."""
_LOOK_S = 0.5
_LOOK_AGAIN_S = 0.1
_OTHER_S = 5.0
"""What another attempt is given for its commit, beside the time that we needed for ours."""
_AT_ONCE = 8


@dataclass(slots=True)
class Claim:
    """A slot that is ours to write, until somebody fences us."""

    register: Register
    sender: Sender
    marker: Marker | None
    is_kept: bool = False
    """From an earlier batch, and not fenced by anybody who has written since."""

    def give_up(self) -> None:
        self.sender.discard()
        self.register.close()

    def abort(self) -> None:
        self.sender.abort()
        self.register.close()


class FencedAtOnce(Exception):
    """A producer that was kept is of no more use. Nothing has happened yet: a new one may try."""


_kept: OrderedDict[tuple[object, ...], Claim] = OrderedDict()
"""Spark lets a worker process work for many batches; what it had is still there."""


@dataclass(frozen=True, slots=True)
class KafkaWriter:
    """Goes to the workers: settings only."""

    target: Target
    prefix: str
    checkpoint: str
    topic: str | None

    # ------------------------------------------------------------------------------ on the driver

    def establish(self, slots: Sequence[Slot], *, reset: bool) -> None:
        """Let there be a marker at each slot's start, committed before anything is written there."""

        def change(slot: Slot, found: Marker | None, instance: str) -> Marker | None:
            if found is None or (reset and found.checkpoint == self.checkpoint):
                return Marker(slot.start, self.checkpoint, slot.batch, instance, now_ms())
            if found.checkpoint != self.checkpoint:
                raise refused_by(found, self.prefix + slot.name)
            judge(slot._replace(end=slot.start), found.position)  # raises unless it stands where it should
            return None

        def establish_one(slot: Slot) -> None:
            change_marker(
                self.target, self.prefix + slot.name, lambda found, instance: change(slot, found, instance)
            )

        with ThreadPoolExecutor(min(_AT_ONCE, len(slots))) as pool:
            for done in [pool.submit(establish_one, slot) for slot in slots]:
                done.result()

    # ------------------------------------------------------------------------------ in a worker

    def write(self, slot: Slot, rows: Iterator[RecordBatch]) -> Done:
        """Write the slot, or find that it is written."""
        first: list[RecordBatch] = []
        while True:
            claim = self._claim(slot)
            began = time.monotonic()
            try:
                if self._judge(slot, claim.marker) is Verdict.SKIP:
                    self._keep(slot, claim)
                    return Done(slot.name, 0, skipped=True, seconds=0.0)
                # What makes the rows may take long until it gives the first: not in an open transaction.
                first = first or list(itertools.islice(rows, 1))
                began = time.monotonic()
                self._begin(claim, slot)
                count = self._fill(claim, itertools.chain(first, rows))
                self._commit(claim)
            except FencedAtOnce:
                claim.give_up()
                continue
            except Fenced as error:
                return self._wait_for_other(slot, claim, error, time.monotonic() - began)
            except InDoubt as error:
                return self._look_again(slot, claim, error)
            except BaseException:
                claim.abort()
                raise
            self._keep(slot, claim)
            return Done(slot.name, count, skipped=False, seconds=time.monotonic() - began)

    def _begin(self, claim: Claim, slot: Slot) -> None:
        """The marker comes first: who has been fenced hears of it before any row is taken."""
        sender = claim.sender
        marker = Marker(slot.end, self.checkpoint, slot.batch, sender.instance, now_ms(), slot.plan)
        try:
            sender.begin()
            sender.mark(claim.register, marker)
        except TransactionLost as error:
            if claim.is_kept:  # by an attempt that came to nothing, or the cluster has forgotten it
                raise FencedAtOnce(str(error)) from error
            raise

    def _fill(self, claim: Claim, rows: Iterator[RecordBatch]) -> int:
        return claim.sender.send(rows, self.topic)

    def _commit(self, claim: Claim) -> None:
        claim.sender.commit()

    def _claim(self, slot: Slot) -> Claim:
        """Be the only one who can write the slot, then read its marker. In this order."""
        kept = _kept.pop(self._key(slot), None)
        if kept is not None:
            if self._is_ours(kept):
                return kept
            kept.give_up()
        name = self.prefix + slot.name
        sender = Sender(self.target, name)
        register = Register(self.target, name)
        try:
            sender.init()
            return Claim(register, sender, register.read())
        except BaseException as error:
            sender.discard()
            register.close()
            if isinstance(error, KafkaException):
                raise Unreachable(f"the marker of {name} cannot be read: {error.args[0].str()}") from error
            raise

    @staticmethod
    def _is_ours(kept: Claim) -> bool:
        """Nobody has written since this producer did."""
        try:
            kept.marker = kept.register.read(_LOOK_S)
        except KafkaException:
            return False  # it may be that somebody's transaction is open: a new producer will end it
        return kept.marker is not None and kept.marker.instance == kept.sender.instance

    def _judge(self, slot: Slot, marker: Marker | None) -> Verdict:
        if marker is not None and marker.checkpoint != self.checkpoint:
            raise MarkerMismatch(str(refused_by(marker, self.prefix + slot.name)))
        verdict = judge(slot, None if marker is None else marker.position)
        if verdict is Verdict.SKIP and marker is not None and marker.plan != slot.plan:
            raise MarkerMismatch(
                f"batch {slot.batch} was written by another plan than this checkpoint knows: it is an old "
                "copy. Bring the newest one back, or give the pipeline a new name"
            )
        return verdict

    def _wait_for_other(self, slot: Slot, claim: Claim, error: Fenced, open_s: float) -> Done:
        """Another attempt has come after us. To fence it in turn would help nobody: let it finish.

        It needs about as long as we did, and its transaction cannot be open for longer than the timeout. If
        ours was, there may be no other: the cluster has put an end to it.
        """
        claim.sender.discard()
        timeout_s = self.target.transaction_timeout_ms / 1000
        patience_s = min(_OTHER_S + 2 * open_s, timeout_s) if open_s < timeout_s else 0.0
        give_up_at = time.monotonic() + patience_s
        try:
            while True:
                left_s = max(_LOOK_S, give_up_at - time.monotonic())
                if self._judge(slot, claim.register.read(left_s)) is Verdict.SKIP:
                    return Done(slot.name, 0, skipped=True, seconds=open_s)
                if time.monotonic() >= give_up_at:
                    raise TransactionLost(f"{error} (open for {open_s:.1f} s of {timeout_s:g} s)") from error
                time.sleep(_LOOK_AGAIN_S)
        except KafkaException as unread:
            why = unread.args[0].str()
            raise TransactionLost(f"{error}; then its marker could not be read: {why}") from error
        finally:
            claim.register.close()

    def _look_again(self, slot: Slot, claim: Claim, error: InDoubt) -> Done:
        """Fence ourselves: then the commit has either happened or never will, and the marker tells."""
        claim.give_up()
        decided = self._claim(slot)
        self._keep(slot, decided)
        if self._judge(slot, decided.marker) is Verdict.SKIP:
            return Done(slot.name, 0, skipped=True, seconds=0.0)
        raise TransactionLost(f"{error}; it is not") from error

    def _keep(self, slot: Slot, claim: Claim) -> None:
        claim.is_kept = True
        _kept[self._key(slot)] = claim
        while len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)[1].give_up()

    def _key(self, slot: Slot) -> tuple[object, ...]:
        return (*self.target.key, self.prefix, slot.name)


def refused_by(found: Marker, name: str) -> SinkRefused:
    """Another checkpoint of a pipeline of this name has written here."""
    by = f"checkpoint {found.checkpoint}" if found.checkpoint else "somebody else"
    return SinkRefused(
        f"{name} was written by {by}, not by this one: bring that checkpoint back, give the pipeline a new "
        "name, or remove its markers (gapless pipeline clean) if what it wrote may be written again"
    )
