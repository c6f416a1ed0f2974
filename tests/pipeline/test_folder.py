"""Small files beside a checkpoint: whole or not there, and they live and die with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from gapless.pipeline.folder import CheckpointFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(spark, tmp_path / "checkpoint")


def test_a_file_is_read_as_it_was_written(folder: CheckpointFolder) -> None:
    every_byte = bytes(range(256)) * 1000
    folder.write("sinks/out/plan.json", every_byte)
    folder.write("empty", b"")
    assert folder.read("sinks/out/plan.json") == every_byte
    assert folder.read("empty") == b""


def test_a_file_that_is_not_there_is_none(folder: CheckpointFolder) -> None:
    assert folder.read("sinks/out/plan.json") is None
    assert folder.names("sinks") == []
    folder.delete("sinks")


def test_a_file_is_replaced_as_a_whole(folder: CheckpointFolder) -> None:
    folder.write("plan", b"a long first content")
    folder.write("plan", b"short")
    assert folder.read("plan") == b"short"


def test_a_write_that_fails_leaves_the_old_file(folder: CheckpointFolder) -> None:
    folder.write("plan", b"old")
    with pytest.raises(TypeError, match="bytes"):
        folder.write("plan", cast("Any", {"no": "bytes"}))
    assert folder.read("plan") == b"old"
    assert folder.names("") == ["plan"]


def test_names_are_sorted_and_show_nothing_that_a_write_left(folder: CheckpointFolder) -> None:
    for name in ("b", "a", "c/d"):
        folder.write(f"sinks/{name}", b"x")
    folder.write("sinks/a", b"y")
    assert folder.names("sinks") == ["a", "b", "c"]
    folder.delete("sinks/c")
    folder.delete("sinks/a")
    assert folder.names("sinks") == ["b"]


def test_a_checkpoint_keeps_its_id_and_another_one_has_another(spark: SparkSession, tmp_path: Path) -> None:
    first = CheckpointFolder(spark, tmp_path / "one").id
    assert CheckpointFolder(spark, f"file://{tmp_path}/one").id == first
    assert CheckpointFolder(spark, tmp_path / "two").id != first


def test_it_lies_inside_the_checkpoint(folder: CheckpointFolder, tmp_path: Path) -> None:
    folder.write("sinks/out/plan.json", b"x")
    assert (tmp_path / "checkpoint" / "gapless" / "sinks" / "out" / "plan.json").read_bytes() == b"x"
