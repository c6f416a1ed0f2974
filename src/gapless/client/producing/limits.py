"""How large a record may be: what librdkafka would refuse must never get into a spool.

From there it would be refused again and again, and hold up all that is behind it. librdkafka counts the whole
record with its headers, and takes the widest form of every length; so it is done here, a few bytes to
the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

from gapless.client.formats import INCARNATION_BYTES
from gapless.client.records import Headers
from gapless.errors import UsageError

_DEFAULT_BYTES = 1_000_000  # librdkafka's default of message.max.bytes
_RECORD_BYTES = 36
_LENGTHS_BYTES = 10  # of a header's name and value
_IDENTITY_BYTES = 2 * (2 + _LENGTHS_BYTES) + 1 + INCARNATION_BYTES + 8


class SizeLimit:
    """Of one producer."""

    def __init__(self, properties: Mapping[str, Any], source: str | None) -> None:
        """`source`: of the identity that records get; None if they get none."""
        given = properties.get("message.max.bytes", _DEFAULT_BYTES)
        try:
            self.max_bytes = int(given)
        except (TypeError, ValueError):
            raise UsageError(f"property message.max.bytes={given!r} cannot be understood") from None
        self._room_bytes = self.max_bytes - _RECORD_BYTES
        if source is not None:
            self._room_bytes -= _IDENTITY_BYTES + len(source)

    def check_all(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, headers: Headers | None
    ) -> None:
        """As `check` for each; where the largest of all fits, that is one."""
        largest = max(filter(None, values), key=len, default=None)
        largest_key = max(filter(None, keys or ()), key=len, default=None)
        try:
            self.check(largest, largest_key, headers)
        except UsageError:
            for value, key in zip(values, keys or repeat(None)):  # noqa: B905  # the other has no end
                self.check(value, key, headers)

    def check(self, value: bytes | None, key: bytes | None, headers: Headers | None) -> None:
        """Refuse a record that librdkafka would refuse."""
        size = (len(value) if value else 0) + (len(key) if key else 0)
        if headers:
            size += sum(len(name.encode()) + len(held or b"") + _LENGTHS_BYTES for name, held in headers)
        if size > self._room_bytes:
            raise UsageError(
                f"a record of {size:,} bytes is too large for message.max.bytes={self.max_bytes}: raise that "
                f"of the producer and max.message.bytes of the topic, or send less"
            )
