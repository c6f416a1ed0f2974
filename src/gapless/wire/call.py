"""The caller's side of a request: a whole frame from a message, and the message of the answer's frame.

The inverse of `request`, for brokers that ask other brokers. Records of a Fetch answer stay views of its
frame.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from gapless.wire import fetch_peer, messages
from gapless.wire.apis import FIRST_FLEXIBLE_VERSION, ApiKey
from gapless.wire.errors import MalformedMessage
from gapless.wire.fetch import FetchRequest
from gapless.wire.messages import ApiMessage
from gapless.wire.primitives import skip_tagged_fields
from gapless.wire.schema import Reader, compile_reader

_HEADER = Struct(">ihhih")  # length, api key, version, correlation id, length of the client id
_CORRELATION_ID = Struct(">i")
_FETCH = int(ApiKey.FETCH)
_API_VERSIONS = int(ApiKey.API_VERSIONS)


def encode_call(api_key: int, version: int, correlation_id: int, client_id: bytes, body: Any) -> bytes:
    """A request's frame, its length in front."""
    if isinstance(body, FetchRequest):
        encoded = fetch_peer.encode_request(body, version)
    else:
        encoded = bytes(body.encode(version=version))
    tags = b"\x00" if version >= FIRST_FLEXIBLE_VERSION[api_key] else b""
    size = _HEADER.size - 4 + len(client_id) + len(tags) + len(encoded)
    head = _HEADER.pack(size, api_key, version, correlation_id, len(client_id))
    return b"".join((head, client_id, tags, encoded))


def answered_call(frame: memoryview) -> int:
    """The correlation id of the request that a frame answers."""
    if len(frame) < _CORRELATION_ID.size:
        raise MalformedMessage(f"an answer of {len(frame)} bytes has no header")
    correlation_id: int = _CORRELATION_ID.unpack_from(frame)[0]
    return correlation_id


def decode_answer(api_key: int, version: int, frame: memoryview) -> Any:
    """The message of an answer to a request of that API and version."""
    position = _CORRELATION_ID.size
    # Who asks for API versions cannot know yet whether headers are flexible: theirs never are.
    if version >= FIRST_FLEXIBLE_VERSION[api_key] and api_key != _API_VERSIONS:
        position = skip_tagged_fields(frame, position)
    if api_key == _FETCH:
        message, _ = fetch_peer.decode_response(frame, position, version)
        return message
    message, _ = _reader(api_key, version)(frame, position)
    return message


_readers: dict[tuple[int, int], Reader] = {}


def _reader(api_key: int, version: int) -> Reader:
    reader = _readers.get((api_key, version))
    if reader is None:
        request = messages.REQUESTS[api_key]
        answer: type[ApiMessage] = getattr(messages, request.__name__.removesuffix("Request") + "Response")
        reader = _readers[api_key, version] = compile_reader(answer, answer.json, version)
    return reader
