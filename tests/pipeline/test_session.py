"""What Spark lacks on a machine is said in one line, and loading the pipeline costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gapless.errors import GaplessError
from gapless.pipeline import SparkMissing, session, spark_session


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(SparkMissing, match=r"pip install 'gapless\[spark\]'"):
        spark_session()


def test_without_jars_the_command_that_fetches_them_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GAPLESS_JARS", str(tmp_path))
    with pytest.raises(GaplessError, match=r"python -m gapless\.jars spark") as missing:
        spark_session()
    assert "\n" not in str(missing.value)


def test_the_pipeline_can_be_imported_without_loading_spark() -> None:
    probe = "import sys, gapless.pipeline; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
