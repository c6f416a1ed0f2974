"""A PostgreSQL writer whose tasks fail around their commit, each kind of failure once."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from gapless.pipeline.sinks.postgres.writer import PostgresWriter


@dataclass(frozen=True, slots=True)
class FailingWriter(PostgresWriter):
    """Fails in one `way`, in the task that is first to make the file `failed`."""

    way: str = ""
    failed: str = ""

    def _commit(self, connection: Any) -> None:
        mine = self._is_first()
        if mine and self.way == "killed before":
            os.kill(os.getpid(), signal.SIGKILL)
        if mine and self.way == "cut off before":
            pid = connection.info.backend_pid
            with psycopg.connect(self.url, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        connection.execute("COMMIT")
        if mine and self.way == "killed after":
            os.kill(os.getpid(), signal.SIGKILL)
        if mine and self.way == "answer lost":
            raise psycopg.OperationalError("the answer to COMMIT is lost")

    def _is_first(self) -> bool:
        try:
            Path(self.failed).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
