"""Relays, and dies or stops for a while where it is told: `python -m tests.client.processes.relaying JOB`.

The job, as JSON: bootstrap, topics, group, out, transactional_id, and
    die_at    the value of a record
    moment    after-produce, after-offsets, after-commit
    signal    SIGKILL (the usual) or SIGSTOP
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from confluent_kafka import Producer

from gapless.client import relaying
from gapless.client.records import Record
from gapless.client.relaying import Output, Relay
from gapless.errors import GaplessError
from tests.client.processes.common import QUICK


class DyingProducer:
    """A producer that kills or stops its process, once, at a moment of the transaction with a record."""

    def __init__(self, properties: dict[str, Any], job: dict[str, Any], seen: set[bytes | None]) -> None:
        self._producer = Producer(properties)
        self._job = job
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def _moment(self, name: str) -> None:
        if self._job.get("moment") == name and self._job["die_at"].encode() in self._seen:
            self._seen.clear()
            os.kill(os.getpid(), getattr(signal, self._job.get("signal", "SIGKILL")))

    def send_offsets_to_transaction(self, *arguments: Any) -> None:
        self._producer.flush()
        self._moment("after-produce")
        self._producer.send_offsets_to_transaction(*arguments)
        self._moment("after-offsets")

    def commit_transaction(self, *arguments: Any) -> None:
        self._producer.commit_transaction(*arguments)
        self._moment("after-commit")


def main() -> None:
    job = json.loads(sys.argv[1])
    seen: set[bytes | None] = set()

    def function(record: Record) -> list[Output]:
        seen.add(record.value)
        value = record.value or b""
        return [Output(job["out"], b"%s-%d" % (value, copy), record.key, partition=copy) for copy in range(2)]

    setattr(relaying, "Producer", lambda properties: DyingProducer(properties, job, seen))  # noqa: B010
    timeouts = {"transaction.timeout.ms": 5000, "message.timeout.ms": 5000}
    try:
        Relay(
            job["bootstrap"],
            group=job["group"],
            topics=job["topics"],
            function=function,
            transactional_id=job["transactional_id"],
            transaction_records=10,
            consumer_properties={**QUICK, **job.get("properties", {})},
            producer_properties=timeouts,
        ).run()
    except GaplessError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
