"""Why a request is refused, in words for people and with Kafka's code for programs."""

from __future__ import annotations

from gapless.wire.errors import ErrorCode

MAX_MESSAGE_CHARACTERS = 500
"""Messages quote what a client sent, and a string in an old version of a reply holds 32,767 bytes at most."""


class Refusal(Exception):
    """One thing of a request that cannot be done."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        if len(message) > MAX_MESSAGE_CHARACTERS:
            message = f"{message[:MAX_MESSAGE_CHARACTERS]}..."
        super().__init__(message)
        self.code = code
