"""Good work is not refused: brokers know the producers of what they have; without faults all goes well."""

from __future__ import annotations

from gapless.simulator.checkers.checker import Checker, promise
from gapless.simulator.clients.relay import Relay
from gapless.simulator.clients.transactional import TransactionalProducer
from gapless.simulator.history import Attempt, GiveUp, Outcome, Write
from gapless.wire.errors import ErrorCode

FORGOTTEN = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
"""Answers that end a producer's sequence: what was stored before is lost, or not known any more."""
WORK = ("send", "transact")
"""What is no fault."""


@promise
class Refused(Checker):
    """Whoever is fenced may have a successor, or was too slow: that counts only where nothing went wrong."""

    name = "refused"
    meaning = (
        "no producer is told that its sequence is out of order or unknown, and none of the newer protocol "
        "that the transaction of its records is not open; where nothing goes wrong, everything is "
        "acknowledged and no transaction fails"
    )

    def at_end(self) -> None:
        history = self.scene.history
        for given_up in history.given_up:
            self._check_sequence(given_up)
        if not self._is_calm():
            return
        working = {
            plan.name for plan in self.scene.case.clients if plan.kind in ("producer", "transactional")
        }
        for given_up in history.given_up:
            if given_up.producer in working:
                self._give_up_is_wrong(given_up, "though nothing went wrong")
        for attempt in history.attempts:
            if attempt.producer in working:
                self._check_attempt(attempt)
        for write in history.writes.values():
            if write.producer in working:
                self._check_write(write)

    def _check_sequence(self, given_up: GiveUp) -> None:
        place = given_up.place
        if place is None or self.is_excused(place):
            return
        if given_up.error in FORGOTTEN:
            self._give_up_is_wrong(given_up, f"though nothing was lost of {place[0]}-{place[1]} by rights")
        if given_up.error is ErrorCode.INVALID_TXN_STATE and self._is_newer(given_up.producer):
            # If the transaction had ended, its epoch would be an old one: that is another error.
            self._give_up_is_wrong(given_up, f"though its transaction can begin in {place[0]}-{place[1]}")

    def _is_newer(self, producer: str) -> bool:
        client = self.scene.clients.get(producer)
        return isinstance(client, TransactionalProducer | Relay) and client.newer

    def _give_up_is_wrong(self, given_up: GiveUp, why: str) -> None:
        self.fail(
            f"{given_up.producer} is told {given_up.error.name} and gives up "
            f"{_named(given_up.values)}, {why}",
            given_up.place,
            *given_up.values,
        )

    def _is_calm(self) -> bool:
        """Whether there was nothing but work, and nobody is the successor of another."""
        case = self.scene.case
        ids = [plan.options["transactional_id"] for plan in case.clients if plan.kind == "transactional"]
        only_work = not self.scene.injected and all(step.what in WORK for step in case.steps)
        return only_work and len(ids) == len(set(ids))

    def _check_attempt(self, attempt: Attempt) -> None:
        if attempt.outcome not in (Outcome.COMMITTED, Outcome.ABORTED):
            self.fail(
                f"transaction {attempt.number} of {attempt.producer} has not ended, "
                "though nothing went wrong",
                None,
                *attempt.values,
            )

    def _check_write(self, write: Write) -> None:
        if write.acks and not write.acknowledged:
            self.fail(
                f"{write.producer} is not told that record {write.value} is stored in "
                f"{write.place[0]}-{write.place[1]}, though nothing went wrong",
                write.place,
                write.value,
            )


def _named(values: tuple[int, ...]) -> str:
    return f"what it sends in records {', '.join(map(str, values))}" if values else "its work"
