"""Which records of a place are new? Judged in the tasks that read them, a batch of columns at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, identity_of
from gapless.pipeline.dedup.runs import Flags, Ints, Runs, no_runs, sift, united
from gapless.pipeline.dedup.seen import Seen
from gapless.pipeline.identity import SEQUENCE_BYTES

_NOBODY = -1
_ANY_NUMBER = (SEQUENCE_HEADER, bytes(SEQUENCE_BYTES))


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
        self._keys: dict[bytes, int] = {}
        self._makers: list[bytes] = []
        self._before = no_runs()
        self._new = no_runs()
        self._dropped = 0

    def are_new(self, makers: Any, sequences: Any) -> Flags:
        """Of each record, by Arrow arrays of its two headers, null without. Who has no identity is new."""
        are_new = np.ones(len(makers), np.bool_)
        have_numbers = pc.equal(pc.binary_length(sequences), SEQUENCE_BYTES).fill_null(False)
        told = np.flatnonzero(pc.and_(makers.is_valid(), have_numbers))
        if len(told) < len(makers):
            makers, sequences = makers.take(pa.array(told)), sequences.take(pa.array(told))
        encoded = makers.cast(pa.binary()).dictionary_encode()
        keys = self._keys_of(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
        numbers = _big_endian(sequences.cast(pa.binary()))
        genuine = (keys != _NOBODY) & (numbers >= 0)
        if not genuine.all():
            told, keys, numbers = told[genuine], keys[genuine], numbers[genuine]
        fresh, runs = sift(keys, numbers, self._before, self._new)
        self._new = united(self._new, runs)
        self._dropped += len(fresh) - int(np.count_nonzero(fresh))
        are_new[told] = fresh
        return are_new

    def found(self) -> Found:
        makers = pa.array(self._makers, pa.binary()).take(pa.array(self._new.keys))
        return Found(Seen(makers, self._new.firsts, self._new.lasts), self._dropped)

    def _keys_of(self, makers: list[bytes]) -> Ints:
        strangers = [maker for maker in makers if maker not in self._keys]
        if strangers:
            self._meet(strangers)
        return np.array([self._keys[maker] for maker in makers], np.int64)

    def _meet(self, makers: list[bytes]) -> None:
        """Give them keys, and look up what was seen of them. There are few, so Python may look at each."""
        known = len(self._makers)
        genuine = [maker for maker in makers if identity_of([(SOURCE_HEADER, maker), _ANY_NUMBER])]
        self._keys.update(dict.fromkeys(makers, _NOBODY))
        self._keys.update(zip(genuine, range(known, known + len(genuine)), strict=True))
        self._makers += genuine
        keys, firsts, lasts = self._seen.runs_of(pa.array(genuine, pa.binary()))
        # New keys are greater than all before them, so the runs stay sorted.
        columns = zip(self._before, (keys + known, firsts, lasts), strict=True)
        self._before = Runs(*map(np.concatenate, columns))


def _big_endian(values: Any) -> Ints:
    """The numbers of an array of eight bytes each; from 2^63 on they come out negative."""
    if not len(values):
        return np.empty(0, np.int64)
    _, places, data = values.buffers()
    start = int(np.frombuffer(places, np.int32)[values.offset])
    return np.frombuffer(data, ">i8", len(values), start).astype(np.int64)
