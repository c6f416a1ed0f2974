"""Which records of a place are new? Judged in the tasks that read them, a batch of columns at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gapless.pipeline.dedup.makers import Makers
from gapless.pipeline.dedup.runs import Flags, Runs, no_runs, sift, united
from gapless.pipeline.dedup.seen import Seen


class Found(NamedTuple):
    """What came to a place in a batch: sequences that were new, and how many records were not."""

    new: Seen
    dropped: int

    @property
    def sequences(self) -> int:
        """How many were new."""
        return int(np.sum(self.new.lasts - self.new.firsts)) + len(self.new.firsts)


class Judge:
    """Judges the records of one place, which must come in the order of the log."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._makers = Makers()
        self._before = no_runs()
        self._new = no_runs()
        self._dropped = 0

    def are_new(self, makers: Any, sequences: Any) -> Flags:
        """Of each record, by Arrow arrays of its two headers, null without. Who has no identity is new."""
        met = len(self._makers.known)
        told = self._makers.read(makers, sequences)
        if len(self._makers.known) > met:
            self._recall(met)
        fresh, runs = sift(told.keys, told.sequences, self._before, self._new)
        self._new = united(self._new, runs)
        self._dropped += len(fresh) - int(np.count_nonzero(fresh))
        are_new = np.ones(len(makers), np.bool_)
        are_new[told.places] = fresh
        return are_new

    def found(self) -> Found:
        makers = pa.array(self._makers.known, pa.binary()).take(pa.array(self._new.keys))
        return Found(Seen(makers, self._new.firsts, self._new.lasts), self._dropped)

    def _recall(self, met: int) -> None:
        """Look up what was seen of makers who are new here."""
        strangers = pa.array(self._makers.known[met:], pa.binary())
        keys, firsts, lasts = self._seen.runs_of(strangers)
        # New keys are greater than all before them, so the runs stay sorted.
        columns = zip(self._before, (keys + met, firsts, lasts), strict=True)
        self._before = Runs(*map(np.concatenate, columns))
