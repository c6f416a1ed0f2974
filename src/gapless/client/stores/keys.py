"""What makes two records the same, when the user says it: keys for all stores alike."""

from __future__ import annotations

from collections.abc import Callable

from gapless.client.records import Record
from gapless.client.stores.port import HandlerFailed
from gapless.errors import UsageError

DedupBy = Callable[[Record], bytes | None]
"""What makes two records the same; None for a record that only its offset tells apart."""


def check_dedup_by(dedup_by: object) -> None:
    if dedup_by != "identity" and not callable(dedup_by):
        raise UsageError(f"dedup_by={dedup_by!r} is unknown: give 'identity' or a function of the record")


def key_of(dedup_by: DedupBy, record: Record) -> bytes | None:
    """A record's key. Where the function raises, that is the record's failure: HandlerFailed.

    UsageError for a key that is not bytes: what came back of it from a database would be another, and a
    record that was never handled would pass for done.
    """
    try:
        key: object = dedup_by(record)
    except Exception as error:  # the user's function, like the handler
        raise HandlerFailed(record, error) from error
    if key is None or isinstance(key, bytes):
        return key
    raise UsageError(
        f"dedup_by gave {key!r} for {record.topic}-{record.partition} offset {record.offset}: return bytes"
        " (encode text, say), or None for a record that only its offset tells apart"
    )
