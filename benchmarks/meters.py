"""What processes have cost so far, read from the kernel: their CPU time with all threads, and their memory.

Memory is the proportional set size: what the processes would give back if they ended. Linux only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_PER_PROCESS_CPU_CLOCK = 2


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time of processes and all threads they ever had, to the nanosecond.

    This is the clock of clock_getcpuclockid(3); /proc/PID/stat has the same sum in ticks of 10 ms.
    """
    return sum(time.clock_gettime(~pid << 3 | _PER_PROCESS_CPU_CLOCK) for pid in pids)


def pss_bytes(pids: Iterable[int]) -> int:
    """The proportional set size of processes, together."""
    return sum(_pss_bytes(pid) for pid in pids)


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no line Pss")


def process_writes() -> dict[str, int]:
    """How many writes this process has made, and their bytes."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {"writes": int(lines["syscw"]), "written_bytes": int(lines["wchar"])}


@dataclass(frozen=True, slots=True)
class Usage:
    """The clocks when a measured stretch began: the wall, the CPU of all broker processes, of this one."""

    broker_pids: Sequence[int]
    broker_cpu_s: float
    client_cpu_s: float
    wall_s: float

    @classmethod
    def begin(cls, broker_pids: Sequence[int]) -> Usage:
        return cls(broker_pids, cpu_s(broker_pids), time.process_time(), time.perf_counter())

    def end(self) -> dict[str, float]:
        """What has passed on each clock, under the names that clients report."""
        return {
            "wall_s": time.perf_counter() - self.wall_s,
            "broker_cpu_s": cpu_s(self.broker_pids) - self.broker_cpu_s,
            "client_cpu_s": time.process_time() - self.client_cpu_s,
        }
