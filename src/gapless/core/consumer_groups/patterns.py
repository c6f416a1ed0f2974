"""Regular expressions for topic names, matched in time linear in the name: whoever sends them is a stranger.

The part of RE2's syntax that makes sense for topic names: literals, `.`, classes, groups, `|`, repetition,
`^` and `$`. Anything else is refused rather than understood otherwise than elsewhere. A pattern must match
the whole name. It becomes a small program of alternatives that are followed all at once; the sets of places
in it are remembered, so that most names cost one look-up for each letter.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import lru_cache

ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
"""What names of topics consist of; a class is a part of it."""
PRINTABLE = frozenset(map(chr, range(0x20, 0x7F)))
"""What names that people make up consist of, as a rule."""
MAX_PATTERN_CHARS = 1000
MAX_NESTING = 50
MAX_PLACES = 300
MAX_EMITTED = 10_000
MAX_STATES = 512

_CLASSES = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset[str](),
}
_POSIX = {
    "alpha": frozenset(string.ascii_letters),
    "digit": frozenset(string.digits),
    "alnum": frozenset(string.ascii_letters + string.digits),
    "lower": frozenset(string.ascii_lowercase),
    "upper": frozenset(string.ascii_uppercase),
    "word": _CLASSES["w"],
}
_BEGIN, _END = "^", "$"


class InvalidPattern(Exception):
    """A pattern cannot be read, or is too large to be matched in good time."""


class _Program:
    """Places: a letter of a class, a jump to several others, an assertion about where the name ends."""

    def __init__(self) -> None:
        self.letters: dict[int, frozenset[str]] = {}
        self.jumps: dict[int, list[int]] = {}
        self.assertions: dict[int, str] = {}
        self.size = 0
        self._emitted = 0

    def place(self) -> int:
        self.size += 1
        if self.size > MAX_PLACES:
            raise InvalidPattern("it is too large")
        return self.size - 1

    def count(self) -> None:
        """Repeating what is empty takes no place, but time."""
        self._emitted += 1
        if self._emitted > MAX_EMITTED:
            raise InvalidPattern("it is too large")


_Node = Callable[[_Program], None]


def _letter(letters: frozenset[str]) -> _Node:
    def emit(program: _Program) -> None:
        program.letters[program.place()] = letters

    return emit


def _assertion(kind: str) -> _Node:
    def emit(program: _Program) -> None:
        program.assertions[program.place()] = kind

    return emit


def _sequence(nodes: list[_Node]) -> _Node:
    def emit(program: _Program) -> None:
        program.count()
        for node in nodes:
            node(program)

    return emit


def _alternatives(nodes: list[_Node]) -> _Node:
    def emit(program: _Program) -> None:
        fork = program.place()
        starts, ends = [], []
        for node in nodes:
            starts.append(program.size)
            node(program)
            ends.append(program.place())
        program.jumps[fork] = starts
        for end in ends:
            program.jumps[end] = [program.size]

    return emit if len(nodes) > 1 else nodes[0]


def _repetition(node: _Node, least: int, most: int | None) -> _Node:
    def emit(program: _Program) -> None:
        for _ in range(least):
            program.count()
            node(program)
        if most is None:
            fork = program.place()
            node(program)
            program.jumps[program.place()] = [fork]
            program.jumps[fork] = [fork + 1, program.size]
            return
        forks = []
        for _ in range(most - least):
            program.count()
            forks.append(program.place())
            node(program)
        for fork in forks:
            program.jumps[fork] = [fork + 1, program.size]

    return emit


# ---------------------------------------------------------------------------------------------- parsing


class _Parser:
    def __init__(self, text: str, alphabet: frozenset[str]) -> None:
        self._text = text
        self._alphabet = alphabet
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._parse_alternatives()
        if self._at < len(self._text):
            raise InvalidPattern("a ) has no (")
        return node

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise InvalidPattern("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _parse_alternatives(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise InvalidPattern("it is nested too deeply")
        nodes = [self._parse_sequence()]
        while self._skip("|"):
            nodes.append(self._parse_sequence())
        self._depth -= 1
        return _alternatives(nodes)

    def _parse_sequence(self) -> _Node:
        nodes: list[_Node] = []
        while self._peek() not in {"", "|", ")"}:
            nodes.append(self._parse_repeated())
        return _sequence(nodes)

    def _parse_repeated(self) -> _Node:
        node = self._parse_atom()
        bounds = self._parse_bounds()
        if bounds is None:
            return node
        self._skip("?")  # which match is found first makes no difference here
        if self._peek() in {"*", "+", "?"}:
            raise InvalidPattern("a repetition is repeated")
        return _repetition(node, *bounds)

    def _parse_bounds(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._peek() in simple:
            return simple[self._take()]
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        inside = self._text[self._at + 1 : end] if end >= 0 else ""
        least, comma, most = inside.partition(",")
        if not least.isdecimal() or (most and not most.isdecimal()) or len(inside) > 9:
            raise InvalidPattern("{ must be followed by numbers, or be written \\{")
        self._at = end + 1
        upper = int(least) if not comma else int(most) if most else None
        if upper is not None and upper < int(least):
            raise InvalidPattern(f"{{{inside}}} ends before it begins")
        return int(least), upper

    def _parse_atom(self) -> _Node:
        letter = self._take()
        if letter == "(":
            if self._peek() == "?" and not self._skip("?:"):
                raise InvalidPattern("(?...) is not supported, but for (?:...)")
            node = self._parse_alternatives()
            if not self._skip(")"):
                raise InvalidPattern("a ( is not closed")
            return node
        if letter == "[":
            return _letter(self._parse_class())
        if letter == ".":
            return _letter(self._alphabet)
        if letter in {_BEGIN, _END}:
            return _assertion(letter)
        if letter == "\\":
            return self._parse_escape()
        if letter in "*+?{":
            raise InvalidPattern(f"{letter} has nothing to repeat")
        return _letter(frozenset(letter))

    def _parse_escape(self) -> _Node:
        letter = self._take()
        if letter in "Az":
            return _assertion(_BEGIN if letter == "A" else _END)
        return _letter(self._escaped(letter))

    def _escaped(self, letter: str) -> frozenset[str]:
        if letter.lower() in _CLASSES:
            found = _CLASSES[letter.lower()]
            return found if letter.islower() else self._alphabet - found
        if letter.isalnum():
            raise InvalidPattern(f"\\{letter} is not supported")
        return frozenset(letter)

    def _parse_class(self) -> frozenset[str]:
        negated = self._skip("^")
        letters: frozenset[str] = frozenset()
        first = True
        while first or not self._skip("]"):
            first = False
            letters |= self._parse_class_item()
        return self._alphabet - letters if negated else letters

    def _parse_class_item(self) -> frozenset[str]:
        if self._skip("[:"):
            end = self._text.find(":]", self._at)
            name = self._text[self._at : end] if end >= 0 else ""
            if name not in _POSIX:
                raise InvalidPattern(f"[:{name}:] is not supported")
            self._at = end + 2
            return _POSIX[name]
        letter = self._take()
        if letter == "\\":
            letters = self._escaped(self._take())
            if len(letters) != 1:
                return letters
            (letter,) = letters
        if self._peek() != "-" or self._text.startswith("-]", self._at):
            return frozenset(letter)
        self._at += 1
        last = self._take()
        if last in "\\[" or last < letter:
            raise InvalidPattern(f"{letter}-{last} is no range")
        return frozenset(each for each in self._alphabet if letter <= each <= last)


# --------------------------------------------------------------------------------------------- matching

_State = tuple[int, ...]


class Pattern:
    """A pattern that can be matched; raises `InvalidPattern` if there is no sense in it."""

    def __init__(self, text: str, alphabet: frozenset[str] = ALPHABET) -> None:
        if len(text) > MAX_PATTERN_CHARS:
            raise InvalidPattern(f"it has more than {MAX_PATTERN_CHARS} characters")
        self._program = _Program()
        _Parser(text, alphabet).parse()(self._program)
        self._start = self._closure([0], _BEGIN)
        self._steps: dict[tuple[_State, str], _State] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        state = self._start
        for letter in name:
            following = self._steps.get((state, letter))
            if following is None:
                following = self._follow(state, letter)
            if not following:
                return False
            state = following
        ends = self._closure(list(state), _END) if name else self._closure([0], _BEGIN + _END)
        return self._program.size in ends

    def _follow(self, state: _State, letter: str) -> _State:
        if len(self._steps) >= MAX_STATES:
            self._steps.clear()
        letters = self._program.letters
        reached = [place + 1 for place in state if letter in letters.get(place, ())]
        following = self._steps[state, letter] = self._closure(reached, "")
        return following

    def _closure(self, places: list[int], holds: str) -> _State:
        """All places that can be reached without a letter, given which assertions hold."""
        program = self._program
        seen: dict[int, None] = {}
        left = places[::-1]
        while left:
            place = left.pop()
            if place in seen:
                continue
            seen[place] = None
            if place in program.jumps:
                left += program.jumps[place]
            elif place in program.assertions and program.assertions[place] in holds:
                left.append(place + 1)
        return tuple(sorted(seen))


@lru_cache(maxsize=256)
def compiled(text: str, alphabet: frozenset[str] = ALPHABET) -> Pattern:
    """A pattern that may have been seen before."""
    return Pattern(text, alphabet)
