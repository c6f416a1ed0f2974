"""Every key of a TOML text is found on its line, however the text is written."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gapless.pipeline.lines import Key, Lines

TEXT = '''\
# about
name = "a"  # b = 1

[source]
topics = [
  "one",   # a comment with ] and "
  'two',
]
starting = { orders = { 0 = 17 }, "x.y" = 3 }
a.b."c d" = 1979-05-27 07:32:00

[transform]
sql = """
SELECT "x" -- [sinks]
FROM records\\
WHERE y = ""
"""
other = \'\'\'it's = ''\'\'\'
after = 1
[[sinks]]
type = "kafka"
[sinks.properties]
"linger.ms" = 5
[[ sinks ]]
type = "delta"
  [sinks . "properties"]
  acks.x = 1
["dead\\u0020letters"]
[[sinks.more]]
z = [[1, 2], [
3]]
'''


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("name",), 2),
        (("source",), 4),
        (("source", "topics"), 5),
        (("source", "topics", 0), 6),
        (("source", "topics", 1), 7),
        (("source", "starting"), 9),
        (("source", "starting", "orders", "0"), 9),
        (("source", "starting", "x.y"), 9),
        (("source", "a"), 10),
        (("source", "a", "b", "c d"), 10),
        (("source", "a.b.c d"), 10),
        (("transform", "sql"), 13),
        (("transform", "other"), 18),
        (("transform", "after"), 19),
        (("sinks",), 20),
        (("sinks", 0), 20),
        (("sinks", 0, "type"), 21),
        (("sinks", 0, "properties", "linger.ms"), 23),
        (("sinks", 0, "properties", "linger", "ms"), 23),
        (("sinks", 1), 24),
        (("sinks", 1, "type"), 25),
        (("sinks", 1, "properties"), 26),
        (("sinks", 1, "properties", "acks.x"), 27),
        (("dead letters",), 28),
        (("sinks", 1, "more", 0, "z"), 30),
        (("sinks", 1, "more", 0, "z", 1, 0), 31),
    ],
)
def test_a_key_is_on_its_line(key: Key, line: int) -> None:
    tomllib.loads(TEXT)
    assert Lines(TEXT).of(key) == line
    assert Lines(TEXT.replace("\n", "\r\n")).of(key) == line


def test_what_is_not_there_is_on_the_line_of_what_is_around_it() -> None:
    lines = Lines(TEXT)
    assert lines.of(("source", "bootstrap")) == 4
    assert lines.of(("sinks", 1, "path")) == 24
    assert lines.of(("sinks", 1, "properties", "path")) == 26
    assert lines.of(("checkpoint",)) == 1
    assert lines.of(()) == 1
    assert Lines("").of(("a", 1)) == 1


def test_the_text_of_a_string_begins_where_its_first_character_is() -> None:
    lines = Lines(TEXT)
    assert lines.of_text(("transform", "sql")) == 14
    assert lines.of_text(("transform", "other")) == 18
    assert lines.of_text(("name",)) == 2


class Page:
    """A text that is being written, and where its keys are."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.text = ""
        self.places: dict[Key, int] = {}
        self.names = 0

    def write(self, text: str) -> None:
        self.text += text

    def place(self, key: Key) -> None:
        self.places[key] = self.text.count("\n") + 1

    def space(self) -> None:
        self.write(self.draw(st.sampled_from(["", " ", "\t "])))

    def blank(self) -> None:
        self.write(self.draw(st.sampled_from(["", " ", "\n", " # [x] = '\"\n", "\n\n  "])))

    def name(self) -> str:
        """A new name, written bare or in quotes."""
        self.names += 1
        bare = f"k{self.names}"
        name, written = self.draw(
            st.sampled_from(
                [
                    (bare, bare),
                    (f"{bare} #=[", f'"{bare} #=["'),
                    (f'{bare}"\\', f"'{bare}\"\\'"),
                    (f"{bare}\"'", f'"{bare}\\"\'"'),
                ]
            )
        )
        self.write(written)
        return name


STRINGS = st.sampled_from(
    [
        *('"plain"', "'lit # ]'", '"a \\" # b"', '""', "''"),
        *('"""\n\\""" a\n\n"""', '"""x""""', "'''\n''\\'''", '"""a\\\n  b"""', "''''a'''"),
    ]
)
PLAIN = st.sampled_from(["1", "-2.5e3", "true", "1979-05-27T07:32:00Z", "07:32:00", "0xff", "inf"])


def write_value(page: Page, key: Key, depth: int, *, one_line: bool) -> None:
    kind = page.draw(st.integers(0, 5 if depth else 3))
    if kind <= 1:
        page.write(page.draw(PLAIN))
    elif kind <= 3:
        page.write(page.draw(STRINGS.filter(lambda text: not one_line or "\n" not in text)))
    elif kind == 4:
        write_list(page, key, depth - 1, one_line=one_line)
    else:
        page.write("{")
        count = page.draw(st.integers(0, 2))
        for index in range(count):
            page.space()
            write_pair(page, key, depth - 1, one_line=True)
            page.space()
            page.write("," if index + 1 < count else "")
        page.write("}")


def write_list(page: Page, key: Key, depth: int, *, one_line: bool) -> None:
    gap = page.space if one_line else page.blank
    page.write("[")
    count = page.draw(st.integers(0, 3))
    for index in range(count):
        gap()
        page.place((*key, index))
        write_value(page, (*key, index), depth, one_line=one_line)
        gap()
        page.write("," if index + 1 < count or page.draw(st.booleans()) else "")
    gap()
    page.write("]")


def write_pair(page: Page, table: Key, depth: int, *, one_line: bool) -> None:
    start = page.text.count("\n") + 1
    key = (*table, page.name())
    page.places[key] = start
    while page.draw(st.integers(0, 3)) == 0:
        page.space()
        page.write(".")
        page.space()
        key = (*key, page.name())
        page.places[key] = start
    page.space()
    page.write("=")
    page.space()
    write_value(page, key, depth, one_line=one_line)


@st.composite
def pages(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Page:
    page = Page(draw)
    table: Key = ()
    lists: dict[str, int] = {}
    for _ in range(draw(st.integers(1, 8))):
        page.blank()
        if page.text and not page.text.endswith("\n"):
            page.write("\n")
        kind = draw(st.integers(0, 4))
        if kind == 0:
            page.write("[")
            page.space()
            table = (page.name(),)
            page.space()
            page.write("]")
            page.place(table)
        elif kind == 1:
            name = draw(st.sampled_from(["sinks", "more"]))
            table = (name, lists.get(name, 0))
            lists[name] = lists.get(name, 0) + 1
            page.places.setdefault((name,), page.text.count("\n") + 1)
            page.place(table)
            page.write(f"[[ {name} ]]")
        elif kind == 2 and table and isinstance(table[-1], int):
            page.write(f"[{table[0]}.")
            table = (*table, page.name())
            page.place(table)
            page.write("]")
        else:
            write_pair(page, table, 3, one_line=False)
        page.write("\n")
    return page


@given(pages())
def test_any_text_that_the_parser_takes_has_its_keys_where_they_were_written(page: Page) -> None:
    tree: Any = tomllib.loads(page.text)
    lines = Lines(page.text)
    for key, line in page.places.items():
        node = tree
        for part in key:
            node = node[part]  # the parser has the same key
        assert lines.of(key) == line, key
    assert lines.keys() == page.places
