"""A process that appends is killed without warning: everything that it had reported is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.core.log import LogConfig
from gapless.storage import FileLogStore
from gapless.wire.batch import is_intact
from tests.storage.helpers import append_one, open_log, parse_all, read_all

ROOT = Path(__file__).parents[2]

APPENDER = """
import sys
from gapless.core.log import LogConfig
from gapless.storage import FileLogStore
from tests.storage.helpers import append_one, flush, open_log
store = FileLogStore(sys.argv[1])
log = open_log(store, LogConfig(segment_bytes=3_000_000))
while True:
    append_one(log, (1000 + log.end_offset,), value=bytes(1 + log.end_offset * 7919 % 200_000))
    print(log.end_offset, flush=True)
    if log.end_offset % 50 == 0:
        flush(log, closed_only=True)
        store.write_checkpoints()
"""


@pytest.mark.parametrize("reports", [1, 40, 230])
def test_every_append_that_was_reported_survives_sigkill(tmp_path: Path, reports: int) -> None:
    data = tmp_path / "data"
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", APPENDER, data],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src"},
        )
        assert child.stdout is not None
        reported = 0
        for _ in range(reports):
            reported = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        for line in child.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                reported = int(line)
        child.wait()
        child.stdout.close()
        store = FileLogStore(data)  # the dead process's lock went with it
        log = open_log(store, LogConfig(segment_bytes=3_000_000))
        assert log.end_offset >= reported
        everything = read_all(log)
        batches = parse_all(everything)
        assert [batch.base_offset for batch in batches] == list(range(log.end_offset))
        assert all(is_intact(everything, batch) for batch in batches)
        append_one(log)
        store.close()
