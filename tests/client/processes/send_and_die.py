"""A producer that is killed in the act, as its arguments say.

    python -m tests.client.processes.send_and_die '{"bootstrap": ..., "topic": ..., "records": 20,
        "options": {"semantics": null, "acks": 1}, "moment": "sent"}'

`moment`: "sent" (send() has returned for all), "waited" (each was waited for), "stored" (each is on local
disk), "spooled" (all have fallen back to the spool), "noting" (acknowledged, but not noted in the spool).
Before it dies it prints how many receipts were settled without an error.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from gapless.client import Producer
from gapless.client.spool import Spool
from gapless.client.spool.inspect import status
from tests.client.processes.common import kill_self


def main() -> None:
    logging.getLogger("gapless.client.librdkafka").addHandler(logging.NullHandler())
    given: dict[str, Any] = json.loads(sys.argv[1])
    moment = given["moment"]
    if moment == "noting":
        setattr(Spool, "note_sent", lambda *_: kill_self())  # noqa: B010
    producer = Producer(given["bootstrap"], "dying", **given["options"])
    producer.send(given["topic"], b"first", partition=0)
    if given.get("outage"):
        producer.flush(30)
        print("ready", flush=True)
        sys.stdin.readline()
    receipts = []
    for number in range(given["records"]):
        receipt = producer.send(given["topic"], b"%d" % number, partition=0, wait=moment == "waited")
        receipts.append(receipt.stored() if moment == "stored" else receipt)
    if moment == "noting":
        producer.flush(30)
    while moment == "spooled" and status(given["options"]["spool"]).stored < given["records"]:
        time.sleep(0.01)
    print(sum(each.done and each.error is None for each in receipts), flush=True)
    kill_self()


main()
