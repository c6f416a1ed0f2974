"""A module with UDFs at its top can be imported only where Spark runs, and that is no mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from pyspark.sql import functions as f

@f.udf("string")
def shout(text):
    return text + "!"

def loud(rows):
    return rows.select(shout(rows.value.cast("string")).alias("value"))
"""
DEFINITION = """
name = "loud"
checkpoint = "checkpoint"
[source]
bootstrap = "{bootstrap}"
topics = ["{topic}"]
[transform]
function = "voices:loud"
[[sinks]]
type = "parquet"
path = "files"
"""
CHECK = """
import sys
import pytest

from gapless.pipeline.check import refuse_early
from gapless.pipeline.definition import Definition
refuse_early(Definition.load(sys.argv[1]))
"""


@pytest.mark.spark
def test_what_is_looked_at_without_spark_leaves_it_for_later(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "voices.py").write_text(MODULE)
    file = tmp_path / "loud.toml"
    file.write_text(DEFINITION.format(bootstrap=bootstrap, topic=topic))
    # In a process of its own: in this one Spark may run.
    done = subprocess.run(
        [sys.executable, "-c", CHECK, file], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
