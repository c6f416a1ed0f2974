"""A torn tail is cut off; stored bytes that are not what they were are named by file and byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.client.spool import SpoolDamaged, SpoolError
from gapless.client.spool.inspect import status, verify

from .disks import open_spool, read_everything, segments, store


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def blocks_of(path: Path) -> list[int]:
    """Where the blocks begin."""
    content = path.read_bytes()
    found, at = [], content.find(b"GSB\x01")
    while at >= 0:
        found.append(at)
        at = content.find(b"GSB\x01", at + 1)
    return found


def forget_hints(folder: Path) -> None:
    (folder / "hints").unlink()


def test_damage_in_the_middle_of_the_last_segment_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, b"1" * 50, b"2" * 50, b"3" * 50)
    (path,) = segments(tmp_path)
    second = blocks_of(path)[2]
    flip(path, second + 70)
    content = path.read_bytes()
    with pytest.raises(SpoolDamaged, match=rf"{path.name} is damaged at byte {second}: .* at byte") as error:
        open_spool(tmp_path)
    assert "nothing was changed" in str(error.value)
    assert path.read_bytes() == content
    assert [f"at byte {second}:" in problem for problem in verify(tmp_path).problems] == [True]


def test_damage_in_an_older_segment_is_found_when_it_is_read(tmp_path: Path) -> None:
    with open_spool(tmp_path, segment_bytes=200) as spool:
        store(spool, *[b"%d" % number * 100 for number in range(6)])
    path = segments(tmp_path)[1]
    at = blocks_of(path)[1]
    flip(path, at + 80)
    with open_spool(tmp_path, segment_bytes=200) as spool:
        with pytest.raises(SpoolDamaged, match=rf"{path.name} is damaged at byte {at}"):
            read_everything(spool)
        behind = int(segments(tmp_path)[2].stem)
        assert read_everything(spool, behind)  # what lies behind can still be read
    (problem,) = verify(tmp_path).problems
    assert path.name in problem
    assert f"at byte {at}" in problem


@pytest.mark.parametrize("victim", [0, 1, -1])
def test_a_missing_segment_is_found_out(tmp_path: Path, victim: int) -> None:
    with open_spool(tmp_path, segment_bytes=200) as spool:
        store(spool, *[b"%d" % number * 100 for number in range(6)])
    path = segments(tmp_path)[victim]
    path.unlink()
    if victim == -1:
        with pytest.raises(SpoolDamaged, match="in a segment that is missing"):
            open_spool(tmp_path, segment_bytes=200)
        with pytest.raises(SpoolDamaged, match="in a segment that is missing"):
            status(tmp_path)
        return
    with open_spool(tmp_path, segment_bytes=200) as spool, pytest.raises(SpoolError):
        read_everything(spool, 0)
    assert victim == 0 or verify(tmp_path).problems


def test_a_last_block_that_was_surely_stored_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, b"1", b"2")
    (path,) = segments(tmp_path)
    flip(path, path.stat().st_size - 1)
    with pytest.raises(
        SpoolDamaged, match=r"at byte \d+: it ends there with position 1, but 2 records were stored"
    ):
        open_spool(tmp_path)
    assert verify(tmp_path).problems


@pytest.mark.parametrize("torn", [1, 10, 30, 60])
def test_a_torn_tail_is_cut_and_told(tmp_path: Path, torn: int) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, b"1" * 50, b"2" * 50)
    forget_hints(tmp_path)
    (path,) = segments(tmp_path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - torn)
    expected = path.stat().st_size - blocks_of(path)[-1]
    assert status(tmp_path).torn_bytes == verify(tmp_path).torn_bytes == expected
    with open_spool(tmp_path) as spool:
        assert spool.cut_bytes == expected
        assert [record.value for record in read_everything(spool)] == [b"1" * 50]
        store(spool, b"3")
    assert not verify(tmp_path).problems
    assert verify(tmp_path).torn_bytes == 0


def test_a_record_that_contains_a_spools_blocks_is_only_a_record(tmp_path: Path) -> None:
    with open_spool(tmp_path / "other") as spool:
        store(spool, b"1", b"2", b"3")
    inner = segments(tmp_path / "other")[0].read_bytes()
    with open_spool(tmp_path / "spool") as spool:
        store(spool, b"first", inner)
    forget_hints(tmp_path / "spool")
    (path,) = segments(tmp_path / "spool")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5)
    with open_spool(tmp_path / "spool") as spool:
        assert [record.value for record in read_everything(spool)] == [b"first"]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["segment", "spool.json", "hints", "lock", "claimed"]),
    content=st.one_of(
        st.binary(max_size=300), st.integers(0, 2**32).map(lambda n: random.Random(n).randbytes(5000))
    ),
    keep=st.integers(0, 60),
)
def test_absurd_files_give_one_clear_error_or_are_harmless(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes, keep: int
) -> None:
    folder = tmp_path_factory.mktemp("absurd")
    with open_spool(folder) as spool:
        store(spool, b"1", b"2")
    path = segments(folder)[0] if name == "segment" else folder / name
    before = path.read_bytes() if path.exists() else b""
    path.write_bytes(before[:keep] + content)
    errors: list[str] = []
    for look in (lambda: open_spool(folder).close(), lambda: status(folder), lambda: verify(folder)):
        try:
            look()
        except SpoolError as error:
            errors.append(str(error))
    assert not [error for error in errors if "\n" in error]


def test_a_segment_with_an_absurd_name_is_refused(tmp_path: Path) -> None:
    open_spool(tmp_path).close()
    (tmp_path / "backup.segment").write_bytes(b"")
    with pytest.raises(SpoolDamaged, match=r"backup\.segment"):
        open_spool(tmp_path)


def test_segments_without_their_description_are_not_begun_anew(tmp_path: Path) -> None:
    open_spool(tmp_path).close()
    (tmp_path / "spool.json").unlink()
    with pytest.raises(SpoolDamaged, match="missing but there are segments"):
        open_spool(tmp_path)


def test_segments_that_are_all_gone_are_missed(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        store(spool, b"1")
    segments(tmp_path)[0].unlink()
    for look in (open_spool, status):
        with pytest.raises(SpoolDamaged, match="segments are missing"):
            look(tmp_path)
    assert verify(tmp_path).problems
