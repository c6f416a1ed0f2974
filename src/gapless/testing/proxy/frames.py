"""Cuts Kafka's byte stream at its messages, as they pass, and lets somebody judge each by its beginning.

Only the first bytes of a message are looked at; the rest is passed on in the pieces in which it arrives. A
message that is to be changed is the exception: it is collected and handed over whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto
from struct import Struct
from typing import NamedTuple

from gapless.wire.apis import FIRST_FLEXIBLE_VERSION, ApiKey
from gapless.wire.errors import MalformedMessage
from gapless.wire.primitives import (
    INT16,
    TRUNCATED,
    read_compact_string,
    read_string,
    skip_tagged_fields,
)

REQUEST_HEAD_BYTES = 512  # enough for any header, and for what Produce says before its records
ANSWER_HEAD_BYTES = 4

_LENGTH = Struct(">i")
_HEADER = Struct(">hhi")
_FIRST_TRANSACTIONAL_PRODUCE = 3

# How brokers call themselves when they are clients of each other: ours, and Apache Kafka's.
_BROKER_CLIENT = re.compile(r"(?:gapless-broker-|broker-)(\d+)(?:-.*)?", re.ASCII)


class Verdict(Enum):
    """What becomes of a message."""

    PASS = auto()
    SWALLOW = auto()
    """It does not go on; what follows it may."""
    CUT = auto()
    """Neither it nor anything after it goes on: the connection ends."""
    TEAR = auto()
    """Half of it goes on; then the connection ends."""
    CHANGE = auto()
    """It goes on in other words, which must be as long."""


class ConnectionCut(Exception):
    """The connection must end, after `passed` has gone on."""

    def __init__(self, passed: bytes) -> None:
        super().__init__("cut")
        self.passed = passed


class Cutter:
    """One direction of one connection.

    `judge` is given the first `head_bytes` of each message, without its length, or all of a shorter one.
    `change` is given whole messages, and returns them changed.
    """

    def __init__(
        self, head_bytes: int, judge: Callable[[bytes], Verdict], change: Callable[[bytes], bytes]
    ) -> None:
        self._head_bytes = head_bytes
        self._judge = judge
        self._change = change
        self._waiting = b""
        """What cannot be judged yet: the beginning of a message."""
        self._left = 0
        """How many bytes of the message at hand are still to come."""
        self._passing = True
        self._verdict: Verdict | None = None
        """That on a message of which too little is there."""

    def feed(self, data: bytes) -> bytes:
        """Take what has arrived; what of it, and of earlier bytes, goes on now. Raises `ConnectionCut`."""
        if self._waiting:
            data = self._waiting + data
            self._waiting = b""
        passed: list[bytes] = []
        start = position = 0  # what lies between them goes on
        while position < len(data):
            if not self._left:
                begun = self._begin(data, position)
                if begun is None:
                    self._waiting = data[position:]
                    break
                verdict, self._left = begun
                self._passing = verdict is Verdict.PASS
                if not self._passing:
                    passed.append(data[start:position])
                    self._divert(verdict, data[position : position + self._left], passed)
            taken = min(self._left, len(data) - position)
            position += taken
            self._left -= taken
            if not self._passing:
                start = position
        if not passed:
            return data if start == 0 and position == len(data) else data[start:position]
        return b"".join([*passed, data[start:position]])

    def _begin(self, data: bytes, position: int) -> tuple[Verdict, int] | None:
        """Judge the message at a position; its size with its length field. None if too little is there."""
        available = len(data) - position
        if available < _LENGTH.size:
            return None
        size = _LENGTH.size + max(0, int(_LENGTH.unpack_from(data, position)[0]))
        head = min(size, _LENGTH.size + self._head_bytes)
        if available < head:
            return None
        if self._verdict is None:
            self._verdict = self._judge(data[position + _LENGTH.size : position + head])
        verdict = self._verdict
        if verdict is Verdict.CHANGE and available < size:
            return None
        self._verdict = None
        return verdict, size

    def _divert(self, verdict: Verdict, message: bytes, passed: list[bytes]) -> None:
        """Do what is not passing: with all of a message, or with what is there of it."""
        if verdict is Verdict.CUT:
            raise ConnectionCut(b"".join(passed))
        if verdict is Verdict.TEAR:
            raise ConnectionCut(b"".join([*passed, message[: len(message) // 2]]))
        if verdict is Verdict.CHANGE:
            length = _LENGTH.size
            passed.append(message[:length] + self._change(message[length:]))


class RequestHead(NamedTuple):
    """What the first bytes of a request say."""

    api_key: int
    correlation_id: int
    sender: int | None
    """The broker that sent it, if it was one."""
    wants_answer: bool


def read_request_head(head: bytes) -> RequestHead | None:
    """Who asks for what; None for what is not a request of Kafka's."""
    view = memoryview(head)
    try:
        api_key, version, correlation_id = _HEADER.unpack_from(view)
        client_id, position = read_string(view, _HEADER.size)
        match = _BROKER_CLIENT.fullmatch(client_id or "")
        wants_answer = api_key != ApiKey.PRODUCE or _wants_answer(view, position, version)
    except (*TRUNCATED, MalformedMessage):
        return None
    return RequestHead(api_key, correlation_id, int(match[1]) if match else None, wants_answer)


def _wants_answer(head: memoryview, position: int, version: int) -> bool:
    """Whether a Produce request asks for acknowledgements: the transactional id comes before that."""
    if version >= FIRST_FLEXIBLE_VERSION[ApiKey.PRODUCE]:
        _, position = read_compact_string(head, skip_tagged_fields(head, position))
    elif version >= _FIRST_TRANSACTIONAL_PRODUCE:
        _, position = read_string(head, position)
    return bool(INT16.unpack_from(head, position)[0] != 0)
