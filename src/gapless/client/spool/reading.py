"""Reading a spool's records back from disk: fast when read in order, and correct from anywhere."""

from __future__ import annotations

import threading

from gapless.client.spool.errors import SpoolFailed
from gapless.client.spool.records import Spooled
from gapless.client.spool.scan import Scan
from gapless.client.spool.segments import Segments


class Reader:
    """Remembers where it was, so that the next records in order cost no search."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._lock = threading.Lock()
        self._scan: Scan | None = None
        self._block: list[Spooled] = []
        """The records of the block that was read last."""

    def read(self, position: int, stored: int, max_records: int, max_bytes: int) -> list[Spooled]:
        """Records from a position that is stored; at least one."""
        with self._lock:
            try:
                return self._read(position, min(stored, position + max_records), max_bytes)
            except OSError as error:
                raise SpoolFailed(
                    f"the spool {self._segments.folder} cannot be read: {error.strerror or error}"
                ) from error

    def _read(self, position: int, end: int, max_bytes: int) -> list[Spooled]:
        found: list[Spooled] = []
        size = 0
        while position < end:
            for record in self._from_block(position, end):
                size += len(record.value or b"") + len(record.key or b"")
                if found and size > max_bytes:
                    return found
                found.append(record)
            position = found[-1].position + 1
            if size >= max_bytes:
                break
        return found

    def _from_block(self, position: int, end: int) -> list[Spooled]:
        if not (self._block and self._block[0].position <= position <= self._block[-1].position):
            self._load(position)
        first = self._block[0].position
        return self._block[position - first : end - first]

    def _load(self, position: int) -> None:
        segment = self._segments.holding(position)
        scan = self._scan
        if scan is None or scan.first != segment.first or scan.position > position:
            self.close()
            scan = self._scan = Scan(segment.path, segment.first, self._segments.incarnation).open()
        while True:
            block = scan.next_block()
            if block is None:
                problem = scan.damaged(scan.at, f"the records from position {scan.position} on are not there")
                self.close()
                raise problem
            if position < block.header.end:
                break
        self._block = scan.records(block)

    def close(self) -> None:
        if self._scan is not None:
            self._scan.close()
        self._scan = None
        self._block = []
