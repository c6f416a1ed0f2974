"""Settings from a file or from Python, checked alike: unknown and missing keys, types, allowed values.

A section is a frozen dataclass that derives from `Settings`. Its annotations are its grammar: `str`, `int`,
`bool`, `Literal`, one or several strings (`Sequence[str]`), properties (`Mapping[str, str]`), any of these or
None. What a section must check beyond that it does in `check`. Every mistake is a `WrongSetting`, which knows
the key, so that whoever has the file can tell its line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from gapless.errors import InvariantViolated, UsageError

Key = tuple[str | int, ...]
"""The way to a value: ("sinks", 0, "topic")."""

_VARIABLE = re.compile(r"(\$?)\$\{([^}]*)\}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_UNITS_S = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}


class WrongSetting(UsageError):
    """A setting that cannot be. `key` is where; the message says what is allowed."""

    def __init__(self, key: Key, problem: str) -> None:
        super().__init__(problem)
        self.key = key
        self.problem = problem

    def below(self, section: Key) -> WrongSetting:
        """The same mistake, seen from outside of the section."""
        return WrongSetting((*section, *self.key), f"{_in_words(section)}{self.problem}")


@dataclass(frozen=True, slots=True)
class Settings:
    """A section. Making one checks it."""

    ALSO: ClassVar[tuple[str, ...]] = ()
    """Keys of the file that are none of the dataclass: for suggestions."""

    def __post_init__(self) -> None:
        for name, kind in _grammar(type(self)).items():
            object.__setattr__(self, name, _checked((name,), kind, getattr(self, name)))
        self.check()

    def check(self) -> None:
        """What the types do not say. Raises `WrongSetting`."""

    @classmethod
    def read(cls, table: object, section: Key, folder: Path) -> Self:
        """The section from a parsed file. Relative paths start at `folder`."""
        try:
            return cls(**_arguments(cls, table, folder))
        except WrongSetting as wrong:
            raise wrong.below(section) from None


def files_resolved(properties: object, folder: Path) -> object:
    """Client properties whose relative paths (`ssl.ca.location`) start at `folder`."""
    if not isinstance(properties, Mapping):
        return properties
    flat = dict(flattened(properties))
    return {
        name: resolved(value, folder) if name.endswith(".location") and isinstance(value, str) else value
        for name, value in flat.items()
    }


def a_path() -> Mapping[str, Any]:
    """The metadata of a field that holds a path: relative ones start where the file is."""
    return {"path": True}


def client_settings() -> Mapping[str, Any]:
    """The metadata of a field that holds properties of Kafka's clients, which may name files."""
    return {"client": True}


def resolved(path: str, folder: Path) -> str:
    """The path seen from `folder`; what has a scheme (s3a://...) is left as it is."""
    return path if "://" in path else os.path.normpath(folder / Path(path).expanduser())


def seconds(key: str, text: str) -> float:
    """The length of "10 minutes", "500 ms", "1 hour"."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNITS_S:
        raise WrongSetting(
            (key,), f'`{key}` must be a number and a unit, such as "500 ms", "10 seconds" or "1 hour"'
        )
    return float(found[1]) * _UNITS_S[found[2]]


def one_of(words: list[str] | tuple[str, ...]) -> str:
    """`a, b or c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def unknown(key: str, known: list[str]) -> WrongSetting:
    close = get_close_matches(key, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"allowed: {', '.join(known)}"
    return WrongSetting((key,), f"unknown key `{key}`; {hint}")


def flattened(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """`a.b = 1` is `"a.b" = 1`: people forget the quotes, and mean the same."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def with_variables(value: Any, key: Key = ()) -> Any:
    """The same with `${NAME}` replaced by that environment variable; `$${` stands for `${`."""
    if isinstance(value, dict):
        return {name: with_variables(each, (*key, name)) for name, each in value.items()}
    if isinstance(value, list):
        return [with_variables(each, (*key, index)) for index, each in enumerate(value)]
    if not isinstance(value, str):
        return value

    def insert(found: re.Match[str]) -> str:
        name = found[2]
        if found[1]:
            return f"${{{name}}}"
        if name not in os.environ:
            raise WrongSetting(
                key,
                f"the environment variable {name} is not set ($${{{name}}} means the text itself)",
            )
        return os.environ[name]

    return _VARIABLE.sub(insert, value)


def _arguments(cls: type[Settings], table: object, folder: Path) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise WrongSetting((), f"expected a table of settings, not {_kind_of(table)}")
    known = {field.name: field for field in fields(cls)}
    for key in table:
        if key not in known:
            raise unknown(key, [*known, *cls.ALSO])
    for name, field in known.items():
        if name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise WrongSetting((), f"the key `{name}` is missing")
    found: dict[str, Any] = dict(table)
    for name, value in table.items():
        if known[name].metadata.get("path") and isinstance(value, str):
            found[name] = resolved(value, folder)
        elif known[name].metadata.get("client"):
            found[name] = files_resolved(value, folder)
    return found


def _grammar(cls: type[Settings]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _checked(key: Key, kind: Any, value: Any) -> Any:
    """The value as the section keeps it, or the reason why it cannot be."""
    name = key[-1]
    origin = get_origin(kind)
    if origin is UnionType:
        options = [option for option in get_args(kind) if option is not NoneType]
        if value is None or len(options) > 1:  # several kinds: the section checks these by itself
            return value
        return _checked(key, options[0], value)
    if origin is Literal:
        words = get_args(kind)
        if value not in words:
            raise WrongSetting(key, f"`{name}` must be {one_of(words)}, not {value!r}")
    elif kind is str:
        _require(isinstance(value, str), key, "a string", value)
        if not value.strip():
            raise WrongSetting(key, f"`{name}` must not be empty")
    elif kind is bool:
        _require(isinstance(value, bool), key, "true or false", value)
    elif kind is int:
        _require(isinstance(value, int) and not isinstance(value, bool), key, "a whole number", value)
    elif origin is Sequence:
        return _strings(key, value)
    elif origin is Mapping:
        return _properties(key, value)
    else:
        raise InvariantViolated(f"settings have no grammar for {kind}")
    return value


def _strings(key: Key, value: Any) -> tuple[str, ...]:
    each = (value,) if isinstance(value, str) else value
    name = key[-1]
    if not isinstance(each, list | tuple) or not all(isinstance(one, str) and one.strip() for one in each):
        raise WrongSetting(key, f"`{name}` must be a string or a list of strings")
    if len(set(each)) < len(each):
        raise WrongSetting(key, f"`{name}` names the same twice")
    return tuple(each)


def _properties(key: Key, value: Any) -> dict[str, str]:
    _require(isinstance(value, Mapping), key, "a table of properties", value)
    found: dict[str, str] = {}
    for name, each in flattened(value):
        if not isinstance(each, str | int | float):
            raise WrongSetting((*key, name), f"`{name}` must be a string, a number, true or false")
        found[name] = str(each).lower() if isinstance(each, bool) else str(each)
    return found


def _require(good: bool, key: Key, wanted: str, value: object) -> None:
    if not good:
        raise WrongSetting(key, f"`{key[-1]}` must be {wanted}, not {_kind_of(value)}")


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value}"
    names = {str: "a string", list: "a list", tuple: "a list", dict: "a table", NoneType: "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")


def _in_words(section: Key) -> str:
    """`in [source]: `, `in [[sinks]]: `; nothing at the top."""
    if not section:
        return ""
    named = f"[[{section[0]}]]" if isinstance(section[-1], int) else f"[{'.'.join(map(str, section))}]"
    return f"in {named}: "
