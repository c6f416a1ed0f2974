"""The benchmark of marks, on sizes so small that nothing is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scenarios import marks


@pytest.mark.redis
def test_every_contender_marks_all_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "marks.json"
    sizes = ["--records", "250", "--asked", "40", "--batch", "100", "--sources", "3"]
    assert marks.main([*sizes, "--out", str(out)]) == 0
    found = json.loads(out.read_text())["marks"]
    assert [each["records"] for each in found] == [250, 250, 40, 250]
    assert all(each["wall_s"] > 0 for each in found)
    assert "row per message" in capsys.readouterr().out
