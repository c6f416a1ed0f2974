"""`gapless pipeline new`: an example that works, with every setting in it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from gapless.cli.pipeline.new import example
from gapless.pipeline.definition import Definition
from gapless.pipeline.sections import (
    Dedup,
    Source,
    ToDelta,
    ToKafka,
    ToParquet,
    ToPostgres,
    TransformSettings,
    Trigger,
)

from ..conftest import Gapless


def test_the_example_is_a_definition_that_is_named_after_its_file(
    tmp_path: Path, run_gapless: Gapless
) -> None:
    file = tmp_path / "my orders.toml"
    ran = run_gapless("pipeline", "new", str(file))
    assert (ran.code, ran.out) == (0, "")
    assert f"gapless pipeline check {file}" in ran.err
    read = Definition.load(file)
    assert read.name == "my-orders"
    assert read.checkpoint == str(tmp_path / "checkpoints" / "my-orders")


def test_a_file_that_is_there_is_left_alone(tmp_path: Path, run_gapless: Gapless) -> None:
    file = tmp_path / "orders.toml"
    file.write_text("mine")
    ran = run_gapless("pipeline", "new", str(file))
    assert ran.code == 2
    assert "is there already" in ran.err
    assert file.read_text() == "mine"
    assert run_gapless("pipeline", "new", str(tmp_path / "no" / "folder.toml")).code == 2


def test_the_example_can_be_printed(run_gapless: Gapless) -> None:
    assert Definition.parse(run_gapless("pipeline", "new", "-").out).name == "pipeline"


def test_every_setting_of_the_example_works_when_its_comment_sign_is_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    text = re.sub(r"^#(?=[\[a-zS\"])", "", example("orders.toml"), flags=re.MULTILINE)
    for one_of_several in ('file = "orders.sql"', 'function = "orders:clean"', "once = true"):
        assert one_of_several in text
        text = text.replace(one_of_several, f"#{one_of_several}")
    read = Definition.parse(text)
    assert [type(sink) for sink in read.sinks] == [ToKafka, ToDelta, ToPostgres, ToParquet]
    assert read.kafka.every["sasl.password"] == "secret"
    assert read.transform.stage
    assert read.dead_letters is not None


def test_the_example_knows_every_setting() -> None:
    text = example("orders.toml")
    few = {"properties", "tasks", "transaction_timeout", "create", "watermark", "group", "name"}
    for section in (Source, Dedup, TransformSettings, ToKafka, ToDelta, ToPostgres, ToParquet, Trigger):
        for field in fields(section):
            assert field.name in few or f"{field.name} = " in text, field.name
