"""On which line of a TOML text a key is: Python's parser does not say.

    Lines(text).of(("sinks", 1, "topic"))

The text must be one that `tomllib` takes; this looks only for where keys and values begin, and leaves what
they mean to the parser.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

Key = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED_KEY = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'")
# A multi-line string may end in up to two quotes of its own before its three.
_STRING = re.compile(
    r"\"\"\"(?:[^\\]|\\.)*?\"\"\"(?:\"{0,2})|'''.*?'''(?:'{0,2})|\"(?:[^\"\\]|\\.)*\"|'[^']*'", re.DOTALL
)
_PLAIN_VALUE = re.compile(r"[^,\]}#\n]*")


class Lines:
    """The lines of a text's keys, tables and elements of lists."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Key, int] = {}
        scanner = _Scanner(text.replace("\r\n", "\n"))
        for key, line in scanner.places():
            self._lines.setdefault(key, line)
        self._texts = scanner.texts
        self._dotted = {_dotted(key): line for key, line in reversed(self._lines.items())}

    def of(self, key: Key) -> int:
        """The line of the key, or of the nearest table around it; 1 if there is none.

        `a.b` and `"a.b"` are found by each other's names, for they often mean the same.
        """
        for length in range(len(key), 0, -1):
            known = self._lines.get(key[:length], self._dotted.get(_dotted(key[:length])))
            if known is not None:
                return known
        return 1

    def of_text(self, key: Key) -> int:
        """The line on which a string's text begins: the next one, if it opens with a line break."""
        return self._texts.get(key) or self.of(key)

    def keys(self) -> dict[Key, int]:
        """All that has a line."""
        return dict(self._lines)


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._tables_in: dict[Key, int] = {}  # how many [[...]] there were, by name
        self.texts: dict[Key, int] = {}

    def places(self) -> Iterator[tuple[Key, int]]:
        table: Key = ()
        while True:
            self._skip(_BLANK)
            if self._at >= len(self._text):
                return
            if self._text[self._at] == "[":
                line = self._line()
                table = self._header()
                yield from _with_prefixes(table, 0, line)
            else:
                yield from self._pair(table)

    def _header(self) -> Key:
        """The table that `[a.b]` or `[[a.b]]` opens."""
        is_list = self._text.startswith("[[", self._at)
        self._at += 2 if is_list else 1
        names = self._key()
        self._at += 2 if is_list else 1
        path: Key = ()
        for name in names[:-1] if is_list else names:
            path = (*path, name)
            if path in self._tables_in:
                path = (*path, self._tables_in[path] - 1)
        if is_list:
            path = (*path, names[-1])
            index = self._tables_in.get(path, 0)
            self._tables_in[path] = index + 1
            path = (*path, index)
        return path

    def _pair(self, table: Key) -> Iterator[tuple[Key, int]]:
        line = self._line()
        key = (*table, *self._key())
        yield from _with_prefixes(key, len(table), line)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        yield from self._value(key)

    def _key(self) -> Key:
        """A dotted key, with the space around it."""
        names: list[str] = []
        while True:
            self._skip(_SPACE)
            quoted = _QUOTED_KEY.match(self._text, self._at)
            if quoted is not None:
                names.append(next(iter(tomllib.loads(f"{quoted[0]} = 0"))))
                self._at = quoted.end()
            else:
                names.append(self._skip(_BARE_KEY))
            self._skip(_SPACE)
            if self._at >= len(self._text) or self._text[self._at] != ".":
                return tuple(names)
            self._at += 1

    def _value(self, key: Key) -> Iterator[tuple[Key, int]]:
        first = self._text[self._at]
        if first in "\"'":
            opens_with_break = self._text.startswith(('"""\n', "'''\n"), self._at)
            self.texts[key] = self._line() + opens_with_break
            self._skip(_STRING)
        elif first == "[":
            yield from self._list(key)
        elif first == "{":
            yield from self._inline_table(key)
        else:
            self._skip(_PLAIN_VALUE)

    def _list(self, key: Key) -> Iterator[tuple[Key, int]]:
        index = 0
        self._at += 1
        while not self._ends_with("]"):
            yield (*key, index), self._line()
            yield from self._value((*key, index))
            index += 1

    def _inline_table(self, key: Key) -> Iterator[tuple[Key, int]]:
        self._at += 1
        while not self._ends_with("}"):
            yield from self._pair(key)

    def _ends_with(self, bracket: str) -> bool:
        """Skip to the next element; True if there is none."""
        self._skip(_BLANK)
        if self._text[self._at] == ",":
            self._at += 1
            self._skip(_BLANK)
        if self._text[self._at] != bracket:
            return False
        self._at += 1
        return True

    def _skip(self, what: re.Pattern[str]) -> str:
        found = what.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1


def _with_prefixes(key: Key, start: int, line: int) -> Iterator[tuple[Key, int]]:
    """`a.b = 1` also makes `a`, there."""
    for length in range(start + 1, len(key) + 1):
        yield key[:length], line
