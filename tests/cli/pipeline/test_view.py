"""What a run shows: the same numbers as a moving table, as lines and as JSON."""

from __future__ import annotations

import json
import re

import pytest

from gapless.cli.pipeline.view import MOST_PARTITIONS, JsonView, LineView, LiveView, Totals, view_for
from gapless.pipeline.progress import Progress, TopicPartition


def progress(batch: int, *, duplicates: int = 0, repeated: bool = False, partitions: int = 2) -> Progress:
    return Progress(
        batch=batch,
        rows_in=1000,
        duplicates=duplicates,
        dead_letters=3,
        written={"clean": 997 - duplicates, "table": 10},
        repeated=repeated,
        seconds=0.5,
        lag={TopicPartition("orders", number): 10 * number for number in range(partitions)},
    )


def test_json_is_one_object_for_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    view.batch(progress(7, duplicates=2))
    view.batch(progress(8))
    said = capsys.readouterr()
    assert said.err == ""
    first, second = map(json.loads, said.out.splitlines())
    assert first == {
        "batch": 7,
        "rows_in": 1000,
        "duplicates": 2,
        "dead_letters": 3,
        "written": {"clean": 995, "table": 10},
        "repeated": False,
        "seconds": 0.5,
        "rows_per_s": 2000.0,
        "lag": {"orders-0": 0, "orders-1": 10},
    }
    assert second["batch"] == 8


def test_lines_come_now_and_then_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    view = view_for("orders", as_json=False)
    assert isinstance(view, LineView)
    for batch in range(50):
        view.batch(progress(batch, duplicates=1, repeated=batch == 0))
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    assert line.endswith(
        "batch 0: 1,000 read (2,000/s), 996 to clean, 10 to table, 1 duplicate, 3 dead letters, "
        "written before, in whole or part, lag 10"
    )
    assert view.totals.summary() == (
        "50 batches, 50,000 records read; 49,800 to clean; 500 to table; 50 duplicates left out; "
        "150 to the dead letters; 1 batch had been written before, in whole or part"
    )


def test_a_run_without_records_has_a_summary() -> None:
    assert Totals().summary() == "0 batches, 0 records read"


def test_the_table_has_sinks_and_the_partitions_that_are_furthest_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "NO_COLOR": "1", "COLUMNS": "80", "LINES": "100"}.items():
        monkeypatch.setenv(name, value)

    def shown(*batches: Progress) -> str:
        """Return what a view shows at the end of these batches."""
        view = LiveView("orders")
        view.start()
        for each in batches:
            view.batch(each)
        view.stop()
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)
        return text[text.rindex("orders ") :]

    assert "waiting for records" in shown()
    text = shown(
        progress(0, partitions=MOST_PARTITIONS + 5), progress(1, partitions=MOST_PARTITIONS + 5, duplicates=4)
    )
    for words in ("orders ", "records/s", "batches/s", "→ clean", "1,990", "duplicates", "dead letters", "6"):
        assert words in text
    assert "orders-24" in text
    assert "orders-4 " not in text
    assert "5 more" in text
    assert "100" in text  # the sum of the others' lag
