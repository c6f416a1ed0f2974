"""One word for what may happen to a record, and the settings that it stands for.

    at-most-once    never twice; may be lost
    at-least-once   never lost; may come twice
    exactly-once    neither

No single setting makes any of these: they run through producer, topic and consumer together. The tables here
are what each word means for each of them. A setting that is given as well wins where the word leaves
a choice, and is refused, with the reason, where it would make the word untrue.
"""

from __future__ import annotations

from enum import StrEnum

from gapless.errors import UsageError


class Semantics(StrEnum):
    """What may happen to a record."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"

    @classmethod
    def named(cls, word: str) -> Semantics:
        try:
            return cls(word)
        except ValueError:
            raise UsageError(f"semantics {word!r} is unknown: choose {', '.join(cls)}") from None
