"""The archive of classes: used where there is one that fits, and no harm where there is not."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.jars import jar_paths
from gapless.java import Java, find_java
from gapless.pipeline.class_archive import archive_path, options_to_make, options_to_use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_java(options: list[str], *arguments: str) -> str:
    command = [str(find_java().executable), *(option.strip('"') for option in options), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr


def test_each_java_and_each_set_of_jars_has_its_own(tmp_path: Path) -> None:
    jars = [tmp_path / "a.jar", tmp_path / "b.jar"]
    java, other = Java(tmp_path / "17", 17), Java(tmp_path / "21", 21)
    paths = {archive_path(java, jars), archive_path(other, jars), archive_path(java, jars[:1])}
    assert len(paths) == 3
    assert {path.parent for path in paths} == {tmp_path}
    java.home.mkdir()
    (java.home / "release").write_text("17.0.16")
    assert archive_path(java, jars) not in paths


def test_without_an_archive_there_are_no_options(tmp_path: Path) -> None:
    assert options_to_use(tmp_path / "none.jsa") == []


@pytest.mark.class_archives
def test_java_writes_one_and_uses_it(tmp_path: Path) -> None:
    archive = tmp_path / "with space.jsa"
    run_java(options_to_make(archive), "-version")
    shown = run_java([*options_to_use(archive), "-Xshare:on"], "-version")
    assert "rror" not in shown


@pytest.mark.spark
@pytest.mark.class_archives
def test_a_session_starts_with_the_archive_that_set_up_has_made(spark: SparkSession) -> None:
    archive = archive_path(find_java(), jar_paths("spark"))
    assert archive.is_file(), "there is none: run: python -m gapless.demo.rehearsal"
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    assert str(archive) in Path(f"/proc/{java}/maps").read_text()


@pytest.mark.class_archives
def test_what_is_no_archive_is_left_alone_without_a_word(tmp_path: Path) -> None:
    plain = run_java(["-Xshare:off"], "-version")
    archive = tmp_path / "garbled.jsa"
    archive.write_bytes(b"garbled" * 10_000)
    assert run_java(options_to_use(archive), "-version") == plain
