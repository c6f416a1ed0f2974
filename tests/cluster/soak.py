"""Random faults from a seed, for minutes, against writers, an exactly-once job and readers.

    python -m tests.cluster.soak --seed 7 --minutes 10

Writers are idempotent, each topic has three replicas, two of which must have a record. What must hold at the
end: no acknowledged record lost, none doubled, order kept; what any reader was ever shown is still in its
place (D3); the copies of the transactional job are the originals, once each, and no transaction is half
there.
What must hold all along: service is back within a bound after each fault. The schedule depends on the seed
alone; what it meets does not, so a failure shows all that happened.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from gapless.testing import Cluster
from tests.cluster.job import Job, Reader, half_transactions
from tests.cluster.workload import Record, Writer, differences, read_back

PARTITIONS = 3
BROKERS = 3
BACK_WITHIN_S = 20.0
SETTINGS = {
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    "replica.lag.time.max.ms": "1500",
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": "5",
}


class Failed(AssertionError):
    """The soak has found something. The message is the whole report."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to whom, for how long."""

    verb: str
    broker: int
    other: int
    for_s: float
    number: int
    then_whole: bool
    """Whether all replicas must be in sync again before the next fault."""

    def __str__(self) -> str:
        whom = {"cut": f"{self.broker} and {self.other}", "lose_acks": f"{self.number} answers"}
        seconds = f" for {self.for_s:.1f} s"
        if self.verb in ("kill both", "kill and pause"):
            return f"{self.verb}: {self.broker} and {self.other}{seconds}"
        return f"{self.verb} {whom.get(self.verb, str(self.broker))}{seconds}"


VERBS = (
    "kill",
    "kill",
    "pause",
    "isolate",
    "cut",
    "slow",
    "lose_acks",
    "power_cut",
    "restart",
    "stop",
    "kill both",
    "kill and pause",
)


def schedule(seed: int, verbs: Sequence[str] = VERBS) -> Iterator[Fault]:
    """Faults without end, the same for the same seed."""
    chance = Random(seed)
    while True:
        broker, other = chance.sample(range(1, BROKERS + 1), 2)
        verb = chance.choice(verbs)
        # What is written to the page cache of two brokers that lose power together may be lost (D1).
        whole = verb == "power_cut" or chance.random() < 0.6
        yield Fault(verb, broker, other, chance.uniform(0.2, 3.5), chance.randint(1, 5), whole)


def apply(cluster: Cluster, fault: Fault) -> None:
    """Do it, and wait; `repair` undoes it."""
    done: dict[str, Callable[[], object]] = {
        "kill": lambda: cluster.kill(fault.broker),
        "pause": lambda: cluster.pause(fault.broker),
        "isolate": lambda: cluster.isolate(fault.broker),
        "cut": lambda: cluster.cut(fault.broker, fault.other),
        "slow": lambda: cluster.slow(fault.broker, 20 * fault.number),
        "lose_acks": lambda: cluster.lose_acks(fault.number),
        "power_cut": lambda: cluster.power_cut(fault.broker, seed=fault.number),
        "restart": lambda: cluster.restart(fault.broker),
        "stop": lambda: cluster.stop(fault.broker),
        "kill both": lambda: cluster.kill(fault.broker, fault.other),
        "kill and pause": lambda: cluster.kill(fault.broker),
    }
    if fault.verb == "kill and pause":
        cluster.pause(fault.other)
    done[fault.verb]()
    time.sleep(fault.for_s)


class Soak:
    """One run. `say` gets a line for each fault."""

    def __init__(
        self,
        seed: int,
        minutes: float,
        say: Callable[[str], object] = print,
        *,
        verbs: Sequence[str] = VERBS,
        keep: Path | None = None,
    ) -> None:
        self._seed = seed
        self._verbs = verbs
        self._keep = keep
        self._minutes = minutes
        self._say = say
        self._history: list[str] = []
        self._began = time.monotonic()
        self.faults = self.restarts = 0

    def run(self) -> None:
        """Raises `Failed` with the seed, the faults so far, what was found and what the brokers said."""
        with ExitStack() as held:
            folder = Path(held.enter_context(TemporaryDirectory(prefix="gapless-soak-")))
            cluster = held.enter_context(Cluster(BROKERS, settings=SETTINGS, folder=folder))
            self._began = time.monotonic()
            try:
                self._load(cluster, held)
            except Exception as error:
                logs = "\n".join(
                    f"--- broker {number}:\n" + "\n".join(cluster.log(number).splitlines()[-60:])
                    for number in cluster.brokers
                )
                history = "\n".join(self._history)
                if self._keep is not None:
                    cluster.kill(*cluster.brokers)
                    shutil.copytree(folder, self._keep, ignore=shutil.ignore_patterns("*.sock"))
                raise Failed(f"seed {self._seed}\n{history}\n{error}\n{logs}") from error

    def _note(self, text: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f} s  {time.strftime('%H:%M:%S')}  {text}"
        self._history.append(line)
        self._say(line)

    def _load(self, cluster: Cluster, held: ExitStack) -> None:
        for topic in ("in", "out"):
            cluster.create_topic(topic, PARTITIONS)
        cluster.create_topic("flushed", PARTITIONS, config={"flush.messages": "1"})
        writers = [Writer(cluster, "in", PARTITIONS), Writer(cluster, "flushed", PARTITIONS, pause_s=0.02)]
        job = Job(cluster, "in", "out", session_timeout_ms=6000)
        readers = {
            "in": Reader(cluster, "in", PARTITIONS),
            "out": Reader(cluster, "out", PARTITIONS, isolation_level="read_committed"),
        }
        runners = [job, *readers.values()]
        for runner in runners:
            held.callback(runner.stop)
            runner.start()
        with ExitStack() as writing:
            for writer in writers:
                writing.enter_context(writer)
            self._break_things(cluster, writers, job)
        self._note(f"{sum(len(writer.acknowledged) for writer in writers)} records acknowledged")
        self._finish(cluster, writers, job, readers)

    def _break_things(self, cluster: Cluster, writers: list[Writer], job: Job) -> None:
        faults = schedule(self._seed, self._verbs)
        while time.monotonic() - self._began < self._minutes * 60:
            fault = next(faults)
            self._note(str(fault))
            apply(cluster, fault)
            cluster.repair()
            times = [time.monotonic()]
            for writer in writers:
                writer.wait_for_more(5, BACK_WITHIN_S)
            times.append(time.monotonic())
            self._wait_for_job(cluster, job)
            times.append(time.monotonic())
            if fault.then_whole:
                self._whole(cluster)
            times.append(time.monotonic())
            if job.failure is not None:
                raise job.failure
            refused = [each for writer in writers for each in writer.refused]
            if refused:
                raise Failed(f"a record was given up: {refused[:3]}")
            self.faults += 1
            began_anew = "".join(f"; the job began anew: {why}" for why in job.restarts[self.restarts :])
            self.restarts = len(job.restarts)
            took = [after - before for before, after in pairwise(times)]
            parts = "writes {:.1f} s, the job {:.1f} s, all in sync {:.1f} s".format(*took)
            self._note(f"  back: {parts}{began_anew}")

    def _wait_for_job(self, cluster: Cluster, job: Job) -> None:
        done = job.committed
        cluster.wait_for(
            lambda: job.committed > done or job.failure is not None,
            "the job goes on",
            timeout_s=BACK_WITHIN_S,
            details=lambda: f"{job.committed} commits, it began anew: {job.restarts[-3:]}",
        )

    def _whole(self, cluster: Cluster) -> None:
        for topic in ("in", "out", "flushed"):
            for partition in range(PARTITIONS):
                cluster.wait_until(topic, partition, in_sync=range(1, BROKERS + 1), timeout_s=BACK_WITHIN_S)

    def _copies(self, cluster: Cluster, job: Job, count: int) -> list[Record]:
        """All that the job has copied in the end; however long it takes, as long as it goes on."""
        copies: list[Record] = []
        while len(copies) < count:
            before = len(copies)

            def more(before: int = before) -> bool:
                copies[:] = read_back(cluster, "out", PARTITIONS, isolation_level="read_committed")
                return len(copies) > before

            cluster.wait_for(
                more,
                "more is copied",
                timeout_s=BACK_WITHIN_S,
                details=lambda: f"{len(copies)} of {count}, the job began anew: {job.restarts[-3:]}",
            )
        return copies

    def _finish(self, cluster: Cluster, writers: list[Writer], job: Job, readers: dict[str, Reader]) -> None:
        self._whole(cluster)
        problems: list[str] = []
        logs = {writer.topic: read_back(cluster, writer.topic, PARTITIONS) for writer in writers}
        for writer in writers:
            problems += [
                f"{writer.topic}: {each}" for each in differences(writer.acknowledged, logs[writer.topic])
            ]
        originals = sorted((record.partition, int(record.value)) for record in logs["in"])
        copies = self._copies(cluster, job, len(originals))
        if sorted((record.partition, int(record.value)) for record in copies) != originals:
            problems.append(f"{len(copies)} copies of {len(originals)} records")
        problems += [f"out: {each}" for each in differences([], copies)]
        problems += half_transactions(copies)
        final = {"in": set(logs["in"]), "out": set(copies)}
        for topic, reader in readers.items():
            if reader.failure is not None:
                problems.append(f"a reader of {topic} failed: {reader.failure}")
            problems += [
                f"{topic}: a consumer was shown {each}, which is not there"
                for each in reader.seen
                if each not in final[topic]
            ]
            problems += [f"a reader of {topic}: {each}" for each in differences([], reader.seen)]
        if problems:
            raise Failed("\n".join([f"{len(problems)} problems:", *problems[:30]]))
        self._note(
            f"{len(originals)} records copied once each in {job.committed} transactions, "
            f"the job began anew {len(job.restarts)} times; {self.faults} faults"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Random faults against a cluster under load.")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--verbs", default=",".join(VERBS), help="faults to choose from, between commas")
    parser.add_argument("--keep", type=Path, help="where to leave the brokers' folders after a failure")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {chosen.minutes:g} minutes", flush=True)
    try:
        Soak(
            chosen.seed,
            chosen.minutes,
            lambda line: print(line, flush=True),
            verbs=chosen.verbs.split(","),
            keep=chosen.keep,
        ).run()
    except Failed as failure:
        print(f"FAILED: {failure}", file=sys.stderr)
        return 1
    print("nothing lost, nothing doubled, all in order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
