"""What Spark lacks on a machine is said in one line, and loading the pipeline costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gapless.errors import GaplessError, UsageError
from gapless.java import Java, find_java
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


@pytest.mark.parametrize("master", ["foo", "", "local[0]", "local[two]", "spark:host", "local[2] "])
def test_what_is_no_master_is_told_before_java_starts(master: str) -> None:
    with pytest.raises(UsageError, match=r"is no master of Spark: local\[2\]"):
        spark_session(master=master)


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_jars_and_options_of_the_users_come_to_ours(master: str, tmp_path: Path) -> None:
    own = {
        "spark.jars": "mine.jar",
        "spark.driver.extraClassPath": "/more",
        "spark.driver.extraJavaOptions": "-Dmine=1",
        "spark.ui.enabled": "true",
    }
    jars, java = [tmp_path / "a.jar", tmp_path / "b.jar"], Java(tmp_path, 17)
    settings = session.settings_for(own, jars, java, master=master)
    assert settings["spark.jars"] == f"{jars[0]},{jars[1]},mine.jar"
    assert settings["spark.driver.extraClassPath"] == f"{jars[0]}:{jars[1]}:/more"
    assert settings["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=")
    assert settings["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")
    assert settings["spark.ui.enabled"] == "true"
    assert ("spark.driver.host" in settings) == master.startswith("local")


@pytest.mark.parametrize("driver_memory", ["512m", "1g", "4g"])
def test_a_short_lived_session_starts_with_any_memory_of_the_driver(driver_memory: str) -> None:
    command = [str(find_java().executable), f"-Xmx{driver_memory}", *session.SHORT_LIVED, "-version"]
    started = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (started.returncode, "warning" in started.stderr) == (0, False), started.stderr


def test_the_pipeline_can_be_imported_without_loading_spark() -> None:
    probe = "import sys, gapless.pipeline; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
