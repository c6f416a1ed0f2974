"""What a spool costs over the least that durability costs: a bare loop that appends to a file and syncs it.

    python -m benchmarks.scenarios.spool [--rounds N] [--quick] [--work DIR] [--out FILE]

Groups of 1, 100 and 1,000 records, of 100 B and 1,000 B, each group durable by one fdatasync:

- `append`: one write call for each record, then fdatasync: a bare loop, and what the target is for. It writes
  the values alone: nobody could tell its records apart again;
- `framed`: the same, with as many bytes before each record as the spool writes: a checksum, lengths, sequence
  and time. What a loop must write to read its records back, and to know after a crash which are whole;
- `joined`: the raw values joined in memory, one write, then fdatasync: the least that is possible;
- `spool`: append the group in one call, wait until it is stored, then begin the next, as the bare loops do
  (claim B9): what somebody does who has the records of a group at once, as they have;
- `spool, one by one`: the same with a call for each record;
- `spool, main thread`: as `spool`, on the main thread, where the spool's own thread must write (commit.py);
- `spool, going on`: one by one, and the next group is appended while the disk syncs the one before, which
  is waited for then. A bare loop cannot do that without a thread and a queue of its own.

All in one process, in turn, in fresh files of the same folder. A ratio is taken within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from struct import Struct

from crc32c import crc32c
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.report import number
from benchmarks.statistics import at_least
from gapless.client.spool import Spool

TARGET = at_least(0.8)
BASELINE, FRAMED, LEAST = "append", "framed", "joined"
SPOOL, ONE_BY_ONE, GOING_ON = "spool", "spool, one by one", "spool, going on"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is written."""

    groups: tuple[tuple[int, int], ...] = ((1, 2_000), (100, 1_000), (1_000, 300))
    """Records of a group, and how many groups."""
    record_bytes: tuple[int, ...] = (100, 1_000)
    rounds: int = 5


QUICK = Sizes(groups=((1, 200), (100, 100), (1_000, 50)), rounds=3)
TINY = Sizes(groups=((1, 5), (10, 3)), record_bytes=(100,), rounds=1)


@dataclass(frozen=True, slots=True)
class Measured:
    """One size, all contenders: microseconds per group, one value per round."""

    group: int
    record_bytes: int
    group_us: dict[str, list[float]]

    def ratio(self, contender: str = SPOOL, baseline: str = BASELINE) -> float:
        """Throughput of one to that of the other: the median of the rounds."""
        pairs = zip(self.group_us[baseline], self.group_us[contender], strict=True)
        return median(theirs / ours for theirs, ours in pairs)


_FRAME = Struct("<IIIQqi")
Contender = Callable[[Path, Sequence[bytes], int], float]
"""Writes so many groups of values to a place; in how many seconds."""


def _framed(place: Path, values: Sequence[bytes], groups: int) -> float:
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    write, sync, frame, sequence = os.write, os.fdatasync, _FRAME.pack, 0
    began_s = time.perf_counter()
    for _ in range(groups):
        for value in values:
            write(fd, frame(crc32c(value), len(value), 0, sequence, 0, -1) + value)
            sequence += 1
        sync(fd)
    took_s = time.perf_counter() - began_s
    os.close(fd)
    return took_s


def _append(place: Path, values: Sequence[bytes], groups: int) -> float:
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    write, sync = os.write, os.fdatasync
    began_s = time.perf_counter()
    for _ in range(groups):
        for value in values:
            write(fd, value)
        sync(fd)
    took_s = time.perf_counter() - began_s
    os.close(fd)
    return took_s


def _joined(place: Path, values: Sequence[bytes], groups: int) -> float:
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    write, sync = os.write, os.fdatasync
    began_s = time.perf_counter()
    for _ in range(groups):
        write(fd, b"".join(values))
        sync(fd)
    took_s = time.perf_counter() - began_s
    os.close(fd)
    return took_s


def _together(place: Path, values: Sequence[bytes], groups: int) -> float:
    if len(values) == 1:
        return _one_by_one(place, values, groups)
    with Spool(place, "bench", linger_s=1.0) as spool:
        append_many, wait = spool.append_many, spool.wait_stored
        wait(spool.append("orders", 0, b""))
        began_s = time.perf_counter()
        for _ in range(groups):
            wait(append_many("orders", 0, values)[-1])
        return time.perf_counter() - began_s


def _one_by_one(place: Path, values: Sequence[bytes], groups: int) -> float:
    with Spool(place, "bench", linger_s=1.0) as spool:
        append, wait = spool.append, spool.wait_stored
        ticket = append("orders", 0, b"")
        wait(ticket)
        began_s = time.perf_counter()
        for _ in range(groups):
            for value in values:
                ticket = append("orders", 0, value)
            wait(ticket)
        return time.perf_counter() - began_s


def _going_on(place: Path, values: Sequence[bytes], groups: int) -> float:
    with Spool(place, "bench", linger_s=1.0) as spool:
        append, wait = spool.append, spool.wait_stored
        ticket = before = append("orders", 0, b"")
        wait(before)
        began_s = time.perf_counter()
        for _ in range(groups):
            for value in values:
                ticket = append("orders", 0, value)
            wait(ticket, 0)  # only asks that it be written soon
            wait(before)
            before = ticket
        wait(before)
        return time.perf_counter() - began_s


def _on_a_thread(contender: Contender) -> Contender:
    def run(place: Path, values: Sequence[bytes], groups: int) -> float:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(contender, place, values, groups).result()

    return run


CONTENDERS: dict[str, Contender] = {
    BASELINE: _append,
    FRAMED: _framed,
    LEAST: _joined,
    SPOOL: _on_a_thread(_together),
    ONE_BY_ONE: _on_a_thread(_one_by_one),
    "spool, main thread": _together,
    GOING_ON: _going_on,
}


def measure(sizes: Sizes, work: Path | None, say: Callable[[str], None]) -> list[Measured]:
    """All sizes and contenders, in rounds of alternating order."""
    found = []
    for group, groups in sizes.groups:
        for record_bytes in sizes.record_bytes:
            values = [os.urandom(record_bytes) for _ in range(group)]
            group_us: dict[str, list[float]] = {name: [] for name in CONTENDERS}
            for round_number in range(sizes.rounds):
                order = list(CONTENDERS) if round_number % 2 == 0 else list(CONTENDERS)[::-1]
                with tempfile.TemporaryDirectory(prefix="gapless-spool-", dir=work) as folder:
                    for name in order:
                        took_s = CONTENDERS[name](Path(folder) / name.replace(", ", "-"), values, groups)
                        group_us[name].append(took_s / groups * 1e6)
            measured = Measured(group, record_bytes, group_us)
            say(
                f"groups of {group:,} × {record_bytes:,} B: {measured.ratio():.2f} of the bare loop,"
                f" one by one {measured.ratio(ONE_BY_ONE):.2f}"
            )
            found.append(measured)
    return found


def table(found: Sequence[Measured]) -> Table:
    shown = Table(title="Spool: microseconds per group (median), and ratios", title_justify="left")
    headings = [
        "records",
        "of",
        *CONTENDERS,
        f"to {BASELINE}",
        "target",
        "",
        f"to {FRAMED}",
        "",
        f"to {LEAST}",
        f"{ONE_BY_ONE}, to {BASELINE}",
        f"{GOING_ON}, to {BASELINE}",
        "spool, records/s",
    ]
    for heading in headings:
        shown.add_column(heading, justify="right")
    for each in found:
        ratio = each.ratio()
        spool_us = median(each.group_us[SPOOL])
        shown.add_row(
            f"{each.group:,}",
            f"{each.record_bytes:,} B",
            *(f"{median(each.group_us[name]):,.0f}" for name in CONTENDERS),
            f"{ratio:.2f}",
            str(TARGET),
            "ok" if TARGET.met_by(ratio) else "short",
            f"{each.ratio(baseline=FRAMED):.2f}",
            "ok" if TARGET.met_by(each.ratio(baseline=FRAMED)) else "short",
            f"{each.ratio(baseline=LEAST):.2f}",
            f"{each.ratio(ONE_BY_ONE):.2f}",
            f"{each.ratio(GOING_ON):.2f}",
            number(each.group / spool_us * 1e6),
        )
    return shown


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scenarios.spool", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    parser.add_argument("--work", type=Path, help="where to write meanwhile (its disk is what is measured)")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    arguments = parser.parse_args(argv)
    sizes = QUICK if arguments.quick else Sizes()
    if arguments.rounds:
        sizes = Sizes(sizes.groups, sizes.record_bytes, arguments.rounds)
    found = measure(sizes, arguments.work, lambda line: print(line, file=sys.stderr))
    Console(width=None if sys.stdout.isatty() else 160).print(table(found))
    if arguments.out is not None:
        described = {"machine": machine.describe(with_peer=False), "spool": [asdict(each) for each in found]}
        arguments.out.write_text(json.dumps(described, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
