"""Who made a record, as a small number: columns of headers become columns of numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, identity_of
from gapless.pipeline.dedup.runs import Ints, Places
from gapless.pipeline.identity import SEQUENCE_BYTES

_NOBODY = -1
_ANY_NUMBER = (SEQUENCE_HEADER, bytes(SEQUENCE_BYTES))


class Told(NamedTuple):
    """The records that have an identity: which they are, their makers' keys, their sequences."""

    places: Places
    keys: Ints
    sequences: Ints


class Makers:
    """Gives each maker a key, in the order in which they come: 0, 1, 2 …"""

    def __init__(self) -> None:
        self.known: list[bytes] = []
        """The key of a maker is its place here."""
        self._keys: dict[bytes, int] = {}

    def read(self, makers: Any, sequences: Any) -> Told:
        """Records by Arrow arrays of their two headers, null without."""
        have_numbers = pc.equal(pc.binary_length(sequences), SEQUENCE_BYTES).fill_null(False)
        places = np.flatnonzero(pc.and_(makers.is_valid(), have_numbers))
        if len(places) < len(makers):
            makers, sequences = makers.take(pa.array(places)), sequences.take(pa.array(places))
        encoded = makers.cast(pa.binary()).dictionary_encode()
        keys = self._keys_of(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
        numbers = _big_endian(sequences.cast(pa.binary()))
        genuine = (keys != _NOBODY) & (numbers >= 0)
        if genuine.all():
            return Told(places, keys, numbers)
        return Told(places[genuine], keys[genuine], numbers[genuine])

    def _keys_of(self, makers: list[bytes]) -> Ints:
        for maker in makers:
            if maker not in self._keys:
                self._keys[maker] = self._new_key(maker)
        return np.array([self._keys[maker] for maker in makers], np.int64)

    def _new_key(self, maker: bytes) -> int:
        """There are few makers, so Python may look at each."""
        if identity_of([(SOURCE_HEADER, maker), _ANY_NUMBER]) is None:
            return _NOBODY
        self.known.append(maker)
        return len(self.known) - 1


def _big_endian(values: Any) -> Ints:
    """The numbers of an array of eight bytes each; from 2^63 on they come out negative."""
    if not len(values):
        return np.empty(0, np.int64)
    _, places, data = values.buffers()
    start = int(np.frombuffer(places, np.int32)[values.offset])
    return np.frombuffer(data, ">i8", len(values), start).astype(np.int64)
