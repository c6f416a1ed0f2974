"""How one should not consume, with a bare client: `python -m tests.client.processes.consume_naively JOB`.

    how       auto-commit: librdkafka's own commits, whatever is processed (E3)
              commit-on-pull: into a queue for a pool of threads, committed when pulled (E4)
It dies when it has made `die_after` effects. Without that, it reads to the end.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import Consumer

from tests.client.processes.common import QUICK, append_line, kill_self


def main() -> None:
    job = json.loads(sys.argv[1])
    automatic = job["how"] == "auto-commit"
    consumer = Consumer(
        {
            **QUICK,
            "bootstrap.servers": job["bootstrap"],
            "group.id": job["group"],
            "group.instance.id": "the-one",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": automatic,
            "auto.commit.interval.ms": 10,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    consumer.subscribe(job["topics"])
    lock, made = threading.Lock(), 0

    def process(value: bytes) -> None:
        nonlocal made
        time.sleep(job.get("pace_s", 0.005))
        with lock:
            append_line(job["effects"], value.decode())
            made += 1
            if made == job.get("die_after"):
                kill_self()

    with ThreadPoolExecutor(1 if automatic else 2) as pool:
        read(consumer, pool, process, automatic)
    consumer.close()


def read(consumer: Consumer, pool: ThreadPoolExecutor, process: Any, automatic: bool) -> None:
    waiting, at_end = [], False
    while True:
        batch = consumer.consume(50, 0.2)
        values = [message.value() for message in batch if message.error() is None]
        if automatic:
            # All of the batch is "stored" for the next automatic commit, though none is processed yet.
            for number, value in enumerate(values):
                if number == 1:
                    consumer.poll(0)
                process(value)
        else:
            waiting += [pool.submit(process, value) for value in values]
            if values:
                consumer.commit(asynchronous=False)
        at_end = at_end or any(message.error() is not None for message in batch)
        if at_end and not values:
            break
    for each in waiting:
        each.result()


if __name__ == "__main__":
    main()
