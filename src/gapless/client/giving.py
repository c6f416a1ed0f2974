"""What users give for a record, as it is sent: bytes or text, headers, a time. What cannot be is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gapless.client.records import Headers
from gapless.errors import UsageError

GivenHeaders = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]


def as_bytes(what: str, given: object) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, str):
        return _encoded(what, given)
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise UsageError(f"a {what} is bytes or text, not {type(given).__name__}: encode it first")


def _encoded(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"a {what} is text that UTF-8 cannot carry: {text[:50]!r}") from None


def header_pairs(given: GivenHeaders) -> Headers:
    """A mapping, or pairs, as pairs of name and bytes."""
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        headers = [(name, as_bytes("header", value)) for name, value in pairs]
    except (TypeError, ValueError):
        raise UsageError("headers are a mapping, or pairs of name and value") from None
    for name, _ in headers:
        if not isinstance(name, str):
            raise UsageError(f"a header's name is text, not {type(name).__name__}")
        _encoded("header's name", name)  # librdkafka's client crashes on what cannot be
        if "\0" in name:
            raise UsageError(f"header {name!r} has a zero byte in its name, where librdkafka would end it")
    return headers


def check_timestamp(timestamp_ms: object) -> None:
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int) or not 0 < timestamp_ms < 1 << 62:
        raise UsageError(
            f"timestamp_ms={timestamp_ms!r} cannot be: give milliseconds since 1970, a whole number above 0"
        )
