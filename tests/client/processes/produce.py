"""A producer to be killed: sends to some topics, and notes in a file what was stored.

    python -m tests.client.processes.produce '{"bootstrap": ..., "folder": ..., "source": ...,
        "topics": [...], "partitions": 3, "run": 4, "report": "stored.txt", "records": null, "die_at": null}'

Values are "run:number". After each group of records is on local disk, a line "run:number" of its last record
is appended to the report: what a caller was told to be safe. With `records` it ends after so many. `die_at`
names a moment at which it kills itself with SIGKILL.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from typing import Any

from gapless.client.producing.claiming import Claimant
from gapless.client.producing.producer import Producer
from gapless.client.producing.receipts import Receipt
from gapless.client.producing.session import Session
from gapless.client.spool import Spool
from gapless.testing.quiet import quiet_logger

GROUP = 25
PAUSE_S = 0.005  # so that comparing does not take longer than killing


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: type, method: str) -> None:
    def dies(*_: Any, **__: Any) -> None:
        die()

    setattr(owner, method, dies)


def _flush_and_die(session: Session, *_: Any) -> None:
    """With all that was produced in the topics' logs, but not committed."""
    session._producer.flush(30)
    die()


def _after_records(method: str) -> None:
    """Die in place of a session's method, once the session has produced records of the spool."""
    real_produce, real_method = Session.produce, getattr(Session, method)
    armed: set[int] = set()

    def produce(session: Session, records: Any) -> None:
        real_produce(session, records)
        armed.add(id(session))

    def dies_if_armed(session: Session, *arguments: Any) -> None:
        if id(session) in armed:
            _flush_and_die(session)
        real_method(session, *arguments)

    setattr(Session, "produce", produce)  # noqa: B010
    setattr(Session, method, dies_if_armed)


def _between_commit_and_note() -> None:
    real = Spool.note_sent

    def dies_if_new(spool: Spool, position: int) -> None:
        if position > spool.sent:
            die()
        real(spool, position)

    setattr(Spool, "note_sent", dies_if_new)  # noqa: B010


MOMENTS = {
    "during-init": lambda: _before(Session, "init"),
    "after-init-before-claim": lambda: _before(Claimant, "_claim"),
    "between-claim-and-its-note": lambda: _before(Spool, "note_claimed"),
    "after-spooling-before-sending": lambda: _before(Session, "produce"),
    "between-records-and-position": lambda: _after_records("set"),
    "between-position-and-commit": lambda: _after_records("commit"),
    "between-commit-and-its-note": _between_commit_and_note,
}


def _send(producer: Producer, chance: random.Random, given: dict[str, Any], number: int) -> Receipt:
    return producer.send(
        chance.choice(given["topics"]),
        b"%d:%d" % (given["run"], number),
        key=None if number % 3 else b"key-%d" % number,
        headers={"run": b"%d" % given["run"]},
        partition=chance.randrange(given["partitions"]),
    )


def main() -> None:
    given = json.loads(sys.argv[1])
    logging.getLogger("gapless.client").addHandler(logging.NullHandler())
    if given.get("die_at"):
        MOMENTS[given["die_at"]]()
    report = os.open(given["report"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    chance = random.Random(given["run"])
    producer = Producer(
        given["bootstrap"],
        given["source"],
        "exactly-once",
        spool=given["folder"],
        transaction_ms=10,
        transaction_records=500,
        seal_every_s=0.2,
        properties={"logger": quiet_logger(), **given.get("properties", {})},
    )
    number = 0
    while given.get("records") is None or number < given["records"]:
        for each in range(number, number + GROUP - 1):
            _send(producer, chance, given, each)
        number += GROUP
        _send(producer, chance, given, number - 1).stored(30)
        os.write(report, b"%d:%d\n" % (given["run"], number - 1))
        time.sleep(PAUSE_S)
    sys.exit(1 if producer.close(30) else 0)


if __name__ == "__main__":
    main()
