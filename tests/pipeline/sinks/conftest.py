"""A session and a checkpoint for each test of a sink."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.sinks.port import SinkContext
from tests.pipeline.kafka_batches import session_for_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return session_for_batches(spark)


@pytest.fixture
def context(session: SparkSession, tmp_path: Path) -> SinkContext:
    return SinkContext("orders", "out", CheckpointFolder(session, tmp_path / "checkpoint"), session)


@pytest.fixture
def fresh_context(context: SinkContext, tmp_path: Path) -> SinkContext:
    """The same pipeline after its checkpoint was lost."""
    return context._replace(folder=CheckpointFolder(context.spark, tmp_path / "fresh"))
