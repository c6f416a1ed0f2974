"""A Kafka sink whose tasks die or fail where they are told to. In a module of its own: workers import it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from gapless.pipeline.sinks.kafka import KafkaSink
from gapless.pipeline.sinks.kafka.writer import Claim, KafkaWriter
from gapless.pipeline.slots import Slot

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from gapless.pipeline.sinks.port import SinkContext

MOMENTS = ("before", "begun", "sending", "sent", "committed")


@dataclass(frozen=True, slots=True)
class MortalWriter(KafkaWriter):
    """As its parent, step by step, with an end after one of them."""

    moment: str = ""
    victim: str = ""
    """The end of the slot's name; none means every slot."""
    dies: bool = True
    """The process, or only the task."""
    once: str = ""
    """A file that remembers that it has happened; none means each time."""
    pause_s: float = 0.0
    """Between the steps, so that others can come between."""
    stall_s: float = 0.0
    """How long the first attempt of the slot `stalls` hangs when it has sent its records."""
    stalls: str = ""
    stalled: str = ""
    """A file that remembers that it has hung."""
    attempts: str = ""
    """A file to which each attempt writes its slot, batch and number."""

    def _begin(self, claim: Claim, slot: Slot) -> None:
        if self.attempts:
            task = TaskContext.get()
            number = -1 if task is None else task.attemptNumber()
            with Path(self.attempts).open("a") as notes:
                notes.write(f"{slot.name} {slot.batch} {number}\n")
        self._end("before", slot.name)
        KafkaWriter._begin(self, claim, slot)
        self._end("begun", slot.name)

    def _fill(self, claim: Claim, rows: Iterator[RecordBatch]) -> int:
        count = claim.sender.send([next(rows)], self.topic)
        self._end("sending", claim.register.name)
        count += claim.sender.send(rows, self.topic)
        self._end("sent", claim.register.name)
        return count

    def _commit(self, claim: Claim) -> None:
        KafkaWriter._commit(self, claim)
        self._end("committed", claim.register.name)

    def _end(self, moment: str, slot: str) -> None:
        time.sleep(self.pause_s)
        if moment == "sent" and self.stall_s and slot.endswith(self.stalls) and _first(self.stalled):
            time.sleep(self.stall_s)
        if moment != self.moment or not slot.endswith(self.victim):
            return
        if self.once and not _first(self.once):
            return
        if self.dies:
            os._exit(9)
        raise ZeroDivisionError(f"the task of {slot} fails: {moment}")


def _first(file: str) -> bool:
    """Whether nobody was here before."""
    try:
        Path(file).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class MortalSink(KafkaSink):
    """`ends` are the fields of `MortalWriter`."""

    def __init__(self, *arguments: Any, ends: dict[str, Any], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._ends = ends

    def _writer(self, context: SinkContext) -> KafkaWriter:
        plain = super()._writer(context)
        return MortalWriter(plain.target, plain.prefix, plain.checkpoint, plain.topic, **self._ends)
