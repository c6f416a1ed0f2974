"""The pinned jars: they are the pinned ones, or they are not installed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import gapless.jars
import gapless.jars.__main__ as command
from gapless.jars import JarsMissing, jar_paths

Pin = Callable[[dict[str, bytes]], None]


@pytest.fixture
def pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pin:
    """`pin({name: content})` makes these the jars of the set `spark`, in a folder of our own."""
    monkeypatch.setenv("GAPLESS_JARS", str(tmp_path / "jars"))

    def write(jars: dict[str, bytes]) -> None:
        sums = tmp_path / "SHA256SUMS"
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in jars.items()}
        sums.write_text("".join(f"{digest}  spark/{name}\n" for name, digest in digests.items()))
        monkeypatch.setattr(gapless.jars, "SUMS_FILE", sums)

    return write


def serve(monkeypatch: pytest.MonkeyPatch, jars: dict[str, bytes]) -> None:
    """Stand in for Ivy and the network."""

    def retrieve(_set_name: str, into: Path) -> None:
        into.mkdir()
        for name, data in jars.items():
            (into / name).write_bytes(data)

    monkeypatch.setattr(command, "retrieve", retrieve)


def test_what_is_retrieved_as_pinned_is_installed(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    pin({"a.jar": b"a", "b.jar": b"b"})
    serve(monkeypatch, {"a.jar": b"a", "b.jar": b"b"})
    command.ensure("spark")
    assert [path.read_bytes() for path in jar_paths("spark")] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("served", "complaint"),
    [
        ({"a.jar": b"evil", "b.jar": b"b"}, r"a\.jar has sha256 \w{64} instead of \w{64}"),
        ({"a.jar": b"a"}, r"b\.jar is missing"),
        ({"a.jar": b"a", "b.jar": b"b", "c.jar": b"c"}, r"c\.jar is not pinned"),
    ],
)
def test_what_is_not_as_pinned_is_not_installed(
    pin: Pin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, served: dict[str, bytes], complaint: str
) -> None:
    pin({"a.jar": b"a", "b.jar": b"b"})
    serve(monkeypatch, served)
    with pytest.raises(JarsMissing, match=complaint) as refused:
        command.ensure("spark")
    assert len(str(refused.value).splitlines()) == 1
    assert not list((tmp_path / "jars").iterdir())


def test_a_jar_that_was_changed_on_disk_is_replaced(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    pin({"a.jar": b"a"})
    serve(monkeypatch, {"a.jar": b"a"})
    command.ensure("spark")
    (jar,) = jar_paths("spark")
    jar.write_bytes(b"changed")
    command.ensure("spark")
    assert jar.read_bytes() == b"a"


def test_missing_jars_are_reported_with_the_command_that_brings_them(pin: Pin) -> None:
    pin({"a.jar": b"a"})
    with pytest.raises(JarsMissing, match=r"run: python -m gapless\.jars spark$"):
        jar_paths("spark")


def test_every_jar_is_pinned_with_a_sum() -> None:
    for set_name in command.SETS:
        sums = gapless.jars.pinned_sums(set_name)
        assert sums
        assert all(len(digest) == 64 and name.endswith(".jar") for name, digest in sums.items())
