"""How `consume` prints a record: its value, a line in the user's format, or a JSON object."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from string import Formatter
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from gapless.errors import UsageError

FIELDS = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers")


def value_line(message: Message) -> bytes:
    """The value's bytes as they are; a record without value is an empty line."""
    return (message.value() or b"") + b"\n"


def json_line(message: Message) -> bytes:
    """One object; bytes that are no UTF-8 are base64 and say so in a field `…_encoding`."""
    kind, timestamp_ms = message.timestamp()
    record: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms if kind != TIMESTAMP_NOT_AVAILABLE else None,
        "timestamp_type": "append" if kind == TIMESTAMP_LOG_APPEND_TIME else "create",
        **_named("key", message.key()),
        "headers": [{"name": name, **_named("value", value)} for name, value in headers_of(message)],
        **_named("value", message.value()),
    }
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def formatted(template: str) -> Callable[[Message], bytes]:
    """A printer for a template such as '{partition} {offset} {key}={value}'; \\n and \\t are understood."""
    template = template.replace("\\n", "\n").replace("\\t", "\t")
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise UsageError(f"--format is not well formed: {error}") from None
    unknown = [name for name in names if name not in FIELDS]
    if unknown:
        raise UsageError(f"--format knows no {{{unknown[0]}}}: it knows {', '.join(FIELDS)}")

    def line(message: Message) -> bytes:
        return (template.format(**_fields(message)) + "\n").encode()

    return line


def _fields(message: Message) -> dict[str, Any]:
    timestamp_ms = message.timestamp()[1]
    time = datetime.fromtimestamp(max(timestamp_ms, 0) / 1000, UTC).isoformat(timespec="milliseconds")
    headers = ",".join(f"{name}={_text(value)}" for name, value in headers_of(message))
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms,
        "time": time,
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": headers,
    }


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """The headers in their order; names may repeat."""
    headers: Any = (
        message.headers()
    )  # read from the wire they are pairs; the type allows what produce() takes
    return headers or []


def _text(data: Any) -> str:
    return "" if data is None else bytes(data).decode(errors="replace")


def _named(name: str, data: Any) -> dict[str, Any]:
    if data is None:
        return {name: None}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(bytes(data)).decode(), f"{name}_encoding": "base64"}
