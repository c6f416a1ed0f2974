"""B9: a SIGKILL in the middle of appends takes nothing that was reported as stored."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gapless.client.spool.inspect import verify

from .disks import SOURCE, open_spool, read_everything

# Four threads that wait for each record, and one that never waits. What is stored goes to stdout, unbuffered.
WRITER = """
import os, sys, threading
from gapless.client.spool import Spool
spool = Spool(sys.argv[1], sys.argv[2], segment_bytes=20_000)
def wait(partition):
    number = spool.next_sequence("orders", partition)
    while True:
        ticket = spool.append("orders", partition, b"%d" % number * 20)
        spool.wait_stored(ticket)
        os.write(1, b"%d %d\\n" % (partition, ticket.sequence))
        number += 1
def rush(partition):
    while True:
        spool.wait_stored(spool.append("orders", partition, b"x" * 100), 0.0)
threads = [threading.Thread(target=wait, args=(partition,)) for partition in range(4)]
threads.append(threading.Thread(target=rush, args=(4,)))
for thread in threads:
    thread.start()
"""


@pytest.mark.parametrize("moment_s", [0.05, 0.4])
def test_what_a_killed_process_reported_as_stored_is_there(tmp_path: Path, moment_s: float) -> None:
    folder = tmp_path / "spool"
    reported: dict[int, int] = {}
    for _ in range(2):  # the second goes on where the one before was killed
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), SOURCE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(moment_s)
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate(timeout=60)
        assert not err
        lines = (first + out).decode().splitlines(keepends=True)
        for line in lines:
            if line.endswith("\n"):
                partition, sequence = map(int, line.split())
                assert sequence > reported.get(partition, -1)
                reported[partition] = sequence
        with open_spool(folder) as spool:
            records = read_everything(spool, max_records=10_000)
        assert [record.position for record in records] == list(range(len(records)))
        for partition in range(5):
            mine = [record for record in records if record.partition == partition]
            assert [record.sequence for record in mine] == list(range(len(mine)))
            assert len(mine) > reported.get(partition, -1)
            if partition < 4:
                assert [record.value for record in mine] == [
                    b"%d" % number * 20 for number in range(len(mine))
                ]


# The main thread appends and waits while SIGINT after SIGINT raises KeyboardInterrupt in the midst of it.
INTERRUPTED = """
import os, random, signal, sys, threading, time
from gapless.client.spool import Spool
spool = Spool(sys.argv[1], sys.argv[2], segment_bytes=20_000)
stop = threading.Event()
armed = False
def once(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, once)
def interrupt():
    while not stop.is_set():
        time.sleep(random.random() / 300)
        os.kill(os.getpid(), signal.SIGINT)
stored = interrupts = 0
until = time.monotonic() + 1.5
threading.Thread(target=interrupt).start()
while time.monotonic() < until:
    try:
        armed = True
        while time.monotonic() < until:
            ticket = spool.append("orders", 0, b"x" * 50)
            if ticket.position % 7 == 0:
                spool.wait_stored(ticket, random.choice([None, 30.0, 0.0]))
                stored += 1
    except KeyboardInterrupt:
        interrupts += 1
    armed = False
stop.set()
spool.close()
print(stored, interrupts)
"""


def test_interrupts_tear_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "spool"), SOURCE],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    stored, interrupts = map(int, ran.stdout.split())
    assert interrupts > 0
    found = verify(tmp_path / "spool")
    assert found.problems == []
    assert found.records >= stored
    with open_spool(tmp_path / "spool") as spool:
        sequences = [record.sequence for record in read_everything(spool, max_records=10_000)]
    assert sequences == list(range(len(sequences)))
