"""Reading transaction markers back from a log: the few batches whose contents a broker must know.

Markers of small transactions lie close together, so one read serves many of them.
"""

from __future__ import annotations

from gapless.core.log import Log
from gapless.wire.batch import BatchHeader, parse_header
from gapless.wire.records import iterate_records
from gapless.wire.transaction_records import EndMarker, decode_marker

READ_BYTES = 64 * 1024


class MarkerReader:
    """Reads markers in the order in which they are in the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._data: bytes | memoryview = b""
        self._position = 0

    def read(self, batch: BatchHeader) -> EndMarker | None:
        """What a control batch of the log says; None if it ends no transaction."""
        found = self._find(batch.base_offset)
        if found is None:
            self._data, self._position = self._log.bytes_from(batch.base_offset, READ_BYTES), 0
            found = self._find(batch.base_offset)
        return None if found is None else decode_marker(iterate_records(self._data, found))

    def _find(self, offset: int) -> BatchHeader | None:
        while self._position < len(self._data):
            batch = parse_header(self._data, self._position)
            if batch.base_offset > offset:
                return None
            self._position += batch.size_bytes
            if batch.base_offset == offset:
                return batch
        return None
