"""docs/formats.md tells other programs what is written: its examples are what the code reads and writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.client import formats
from gapless.client.formats import (
    Identity,
    Interval,
    Seal,
    UnreadableSeal,
    check_source,
    identity_of,
    owner_group,
    position_group,
    sequence_header,
    source_header,
)
from gapless.client.producing.ledger import Committed
from gapless.client.producing.ownership import Position
from gapless.client.producing.seals import MAX_INTERVALS_PER_SEAL
from gapless.errors import UsageError

TEXT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
INCARNATION = bytes.fromhex("c9a318aaa7264f63")


def example(kind: str) -> str:
    found = re.search(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_of_an_identity_is_one() -> None:
    headers = [
        (name, bytes.fromhex(value)) for name, value in map(str.split, example("identity").splitlines())
    ]
    assert identity_of(headers) == Identity("orders-api", INCARNATION, 41)
    assert dict(headers) == {"gs": source_header("orders-api", INCARNATION), "gn": sequence_header(41)}


def test_the_example_of_a_seal_is_one() -> None:
    text = example("seal")
    seal = Seal.from_bytes(text.encode())
    assert seal == Seal(
        "orders-api",
        INCARNATION,
        1794803022696,
        "interval",
        (Interval("orders", 0, 0, 4999), Interval("orders", 3, 120, 121)),
        {"orders": 5002},
    )
    assert json.loads(seal.to_bytes()) == json.loads(text)
    assert seal.key() == b"orders-api:c9a318aaa7264f63"


def test_every_field_of_a_seal_is_told() -> None:
    for name in json.loads(Seal("s", INCARNATION, 0, "close").to_bytes()):
        assert f"`{name}`" in TEXT
    for reason in ("interval", "close", "recovered"):
        assert f"`{reason}`" in TEXT
    assert f"at most {MAX_INTERVALS_PER_SEAL:,} intervals" in TEXT


def test_the_example_of_a_position_is_one() -> None:
    fields = dict(line.split(maxsplit=1) for line in example("position").splitlines())
    assert fields["group"] == position_group("orders-api", INCARNATION)
    position = Position.of(Committed(int(fields["offset"]), fields["metadata"]))
    assert position == Position(5002, "5f0e1c2d3b4a5968", "c2dc0b3a")
    assert position.metadata == fields["metadata"]


def test_the_names_are_those_of_the_code() -> None:
    assert f"`{formats.LEDGER_TOPIC}`" in TEXT
    assert f"`{owner_group('<source>')}`" in TEXT
    assert f"partition {formats.POSITION_PARTITION} of the ledger" in TEXT


@settings(deadline=None)
@given(
    st.from_regex(r"[A-Za-z0-9._-]{1,150}", fullmatch=True),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 2**64 - 1),
)
def test_any_identity_comes_back_from_its_headers(source: str, incarnation: bytes, sequence: int) -> None:
    headers = [
        ("other", b"x"),
        ("gs", source_header(source, incarnation)),
        ("gn", sequence_header(sequence)),
    ]
    assert identity_of(headers) == Identity(source, incarnation, sequence)


@pytest.mark.parametrize(
    ("gs", "gn"),
    [
        (b"\x02" + INCARNATION + b"s", sequence_header(1)),
        (b"\x01" + INCARNATION, sequence_header(1)),
        (b"\x01" + INCARNATION + b"s", b"short"),
        (b"\x01" + INCARNATION + b"not a source", sequence_header(1)),
        (b"\x01" + INCARNATION + b"\xff", sequence_header(1)),
        (None, sequence_header(1)),
    ],
)
def test_what_is_no_identity_is_none(gs: bytes | None, gn: bytes) -> None:
    assert identity_of([("gs", gs), ("gn", gn)]) is None


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"version": 2}', b'{"version": 1, "source": "s"}', b"\xff\xfe"]
)
def test_what_is_no_seal_is_refused(value: bytes) -> None:
    with pytest.raises(UnreadableSeal):
        Seal.from_bytes(value)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 151, "ü"])
def test_a_source_has_a_name_that_groups_and_headers_can_carry(name: str) -> None:
    with pytest.raises(UsageError):
        check_source(name)
