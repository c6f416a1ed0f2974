"""What a setting is: its name, its type, its default, and what a value must satisfy.

The tables of all settings are in `config_tables`, their look-up through all layers in `configs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

TOPIC, BROKER = 2, 4  # Kafka's codes for config resources
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
MAX_VALUE_CHARACTERS = 1000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class InvalidConfig(Exception):
    """A setting that cannot be accepted; the message names it and says what would be."""


class Kind(IntEnum):
    """Kafka's codes for config types."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """Kafka's codes for where a value came from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    """A broker setting that serves as a topic setting's default; its value times `factor`."""

    name: str
    factor: int = 1

    def scaled(self, text: str) -> str:
        """The topic setting's value. -1 means "no limit" in every unit, and so does more than fits."""
        if self.factor == 1 or int(text) < 0:
            return text
        return str(min(LONG_MAX, int(text) * self.factor))


@dataclass(frozen=True, slots=True)
class Key:
    """One setting's definition."""

    name: str
    kind: Kind
    default: str
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    synonyms: tuple[Synonym, ...] = ()

    def parse(self, text: str) -> Any:
        """The typed value of `text`; raises `InvalidConfig`."""
        if len(text) > MAX_VALUE_CHARACTERS:
            raise InvalidConfig(
                f"Invalid value for configuration {self.name}: it has {len(text)} characters, "
                f"at most {MAX_VALUE_CHARACTERS} are allowed"
            )
        try:
            value = _PARSERS[self.kind](text.strip())
        except ValueError:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {self.name}: Not a {self.kind.name.lower()}"
            ) from None
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_range(text, value)
        for item in value if isinstance(value, list) else [value]:
            if self.choices and item not in self.choices:
                raise InvalidConfig(
                    f"Invalid value {text} for configuration {self.name}: "
                    f"String must be one of: {', '.join(self.choices)}"
                )
        return value

    def _check_range(self, text: str, value: float) -> None:
        limit = INT_MAX if self.kind is Kind.INT else LONG_MAX
        low = -limit - 1 if self.at_least is None else self.at_least
        high = limit if self.at_most is None else self.at_most
        if value < low:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {self.name}: Value must be at least {low}"
            )
        if value > high:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {self.name}: Value must be at most {high}"
            )


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_PARSERS: dict[Kind, Callable[[str], Any]] = {
    Kind.BOOLEAN: _boolean,
    Kind.STRING: str,
    Kind.INT: int,
    Kind.LONG: int,
    Kind.DOUBLE: float,
    Kind.LIST: lambda text: [item.strip() for item in text.split(",") if item.strip()],
}
