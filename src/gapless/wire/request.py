"""From a request's frame to its header and message, and from a message to the frames of a reply.

Produce and Fetch have codecs of their own; all other messages are kafka-python's classes, see `messages`.
Whatever is wrong with a frame is a `MalformedMessage`; the connection it came from is then beyond repair.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from gapless.wire import fetch, produce
from gapless.wire.apis import FIRST_FLEXIBLE_VERSION, ApiKey
from gapless.wire.errors import MalformedMessage
from gapless.wire.fetch import FetchRequest, FetchResponse, RecordsRef
from gapless.wire.messages import REQUESTS, ApiMessage
from gapless.wire.primitives import TRUNCATED, read_text, skip_tagged_fields
from gapless.wire.produce import ProduceRequest, ProduceResponse
from gapless.wire.schema import Reader, compile_reader

Request = ProduceRequest | FetchRequest | ApiMessage
Response = ProduceResponse | FetchResponse | ApiMessage

_PEEK = Struct(">hhi")
_HEADER = Struct(">hhih")
_REPLY_V0 = Struct(">ii")  # length, correlation id
_REPLY_V1 = Struct(">iiB")  # the same and no tagged fields

_PRODUCE = int(ApiKey.PRODUCE)
_FETCH = int(ApiKey.FETCH)
_API_VERSIONS = int(ApiKey.API_VERSIONS)


class RequestHeader(NamedTuple):
    """Who asks for what."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def peek(frame: memoryview) -> tuple[int, int, int]:
    """API key, version and correlation id: all that can be said of a request that is not known any closer."""
    if len(frame) < _PEEK.size:
        raise MalformedMessage(f"a request of {len(frame)} bytes has no header")
    api_key, api_version, correlation_id = _PEEK.unpack_from(frame)
    return api_key, api_version, correlation_id


def decode_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """The header, and where the body begins."""
    try:
        api_key, api_version, correlation_id, client_id_bytes = _HEADER.unpack_from(frame)
        first_flexible = FIRST_FLEXIBLE_VERSION.get(api_key)
        if first_flexible is None:
            raise MalformedMessage(f"there is no API {api_key}")
        client_id = None
        position = _HEADER.size
        if client_id_bytes >= 0:
            client_id, position = read_text(frame, position, client_id_bytes)
        elif client_id_bytes != -1:
            raise MalformedMessage(f"a client id has the length {client_id_bytes}")
        if api_version >= first_flexible:
            position = position + 1 if frame[position] == 0 else skip_tagged_fields(frame, position)
    except TRUNCATED:
        raise MalformedMessage("a request ends within its header") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def decode_body(header: RequestHeader, frame: memoryview, offset: int) -> Request:
    """The message of a request, which begins at `offset`.

    Produce and Fetch must end with the frame. Behind other requests Kafka ignores what follows, and clients
    rely on that: librdkafka asks for all topics in Metadata v13 with a length of four bytes instead of one.
    """
    api_key, version = header.api_key, header.api_version
    message: Request
    if api_key == _PRODUCE:
        if not produce.MIN_VERSION <= version <= produce.MAX_VERSION:
            raise MalformedMessage(f"Produce has no version {version}")
        message, end = produce.decode_request(frame, offset, version)
    elif api_key == _FETCH:
        if not fetch.MIN_VERSION <= version <= fetch.MAX_VERSION:
            raise MalformedMessage(f"Fetch has no version {version}")
        message, end = fetch.decode_request(frame, offset, version)
    else:
        message, _ = _reader(api_key, version)(frame, offset)
        return message
    if end != len(frame):
        raise MalformedMessage(f"{len(frame) - end} bytes follow a request of API {api_key} v{version}")
    return message


_readers: dict[tuple[int, int], Reader] = {}


def _reader(api_key: int, version: int) -> Reader:
    """The reader for a version of a message; only valid ones are kept, so hostile numbers pile nothing up."""
    reader = _readers.get((api_key, version))
    if reader is None:
        message = REQUESTS.get(api_key)
        if message is None:
            raise MalformedMessage(f"there is no API {api_key}")
        reader = _readers[api_key, version] = compile_reader(message, message.json, version)
    return reader


def encode_reply(header: RequestHeader, message: Response) -> list[bytes | RecordsRef]:
    """A whole frame, its length in front; only replies to Fetch have more than one part."""
    version = header.api_version
    if isinstance(message, FetchResponse):
        parts = fetch.encode_response(message, version)
        size = sum(len(part) if isinstance(part, bytes) else part.size for part in parts)
        first = parts[0]
        if not isinstance(first, bytes):
            raise TypeError("an encoded fetch response begins with bytes")
        parts[0] = _reply_header(header, size) + first
        return parts
    if isinstance(message, ProduceResponse):
        body: Any = produce.encode_response(message, version)
    else:
        body = message.encode(version=version)
    return [_reply_header(header, len(body)) + body]


def _reply_header(header: RequestHeader, body_bytes: int) -> bytes:
    # A client that asks for API versions cannot know yet whether headers are flexible: they never are.
    if header.api_key != _API_VERSIONS and header.api_version >= FIRST_FLEXIBLE_VERSION[header.api_key]:
        return _REPLY_V1.pack(body_bytes + 5, header.correlation_id, 0)
    return _REPLY_V0.pack(body_bytes + 4, header.correlation_id)
