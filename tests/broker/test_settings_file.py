"""A settings file is accepted whole or refused with its first mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.broker.settings_file import read_settings
from gapless.errors import UsageError


def test_names_are_kafkas(tmp_path: Path) -> None:
    path = tmp_path / "broker.properties"
    path.write_text("# ours\n\nnum.partitions=4\nlog.retention.hours = 24\n")
    assert read_settings(path) == {"num.partitions": "4", "log.retention.hours": "24"}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("num.partition=4", "did you mean num.partitions?"),
        ("num.partitions=four", "num.partitions"),
        ("num.partitions=0", "at least 1"),
        ("num.partitions", "expected name=value"),
        ("log.cleanup.policy=burn", "delete, compact"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "broker.properties"
    path.write_text(f"# a comment\n{line}\n")
    with pytest.raises(UsageError, match=r"broker\.properties:2: .*") as error:
        read_settings(path)
    assert complaint in str(error.value)


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nowhere"):
        read_settings(tmp_path / "nowhere")
