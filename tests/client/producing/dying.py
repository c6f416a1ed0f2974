"""Runs a producer in a process of its own that kills itself; see tests/client/processes/send_and_die.py."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.client.conftest import PATIENCE_S, Kafka


def send_and_die(
    kafka: Kafka,
    topic: str,
    moment: str,
    records: int,
    during_outage: Callable[[], None] | None = None,
    **options: Any,
) -> int:
    """How many records it thought were safe when it died."""
    job = {
        "bootstrap": kafka.bootstrap,
        "topic": topic,
        "records": records,
        "moment": moment,
        "outage": during_outage is not None,
        "options": options,
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.client.processes.send_and_die", json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if during_outage is not None:
            assert process.stdout.readline() == "ready\n"
            during_outage()
            process.stdin.write("go\n")
            process.stdin.flush()
        said, complained = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL, complained
    return int(said or 0)
