"""The spool's benchmark, on sizes so small that nothing is measured."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from benchmarks.scenarios.spool import CONTENDERS, TINY, measure, table


def test_every_contender_is_measured_and_shown(tmp_path: Path) -> None:
    said: list[str] = []
    found = measure(TINY, tmp_path, said.append)
    assert [(each.group, each.record_bytes) for each in found] == [(1, 100), (10, 100)]
    for each in found:
        assert all(value > 0 for name in CONTENDERS for value in each.group_us[name])
        assert each.ratio() > 0
    assert len(said) == 2
    console = Console(record=True, width=200)
    console.print(table(found))
    assert "to append" in console.export_text()
    assert not list(tmp_path.iterdir())
