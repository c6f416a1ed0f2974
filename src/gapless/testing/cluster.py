"""A cluster of real brokers, a process each, with a network between them that can be made to fail.

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=6)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        leader = cluster.leader("orders", 0)
        cluster.kill(leader)
        cluster.wait_until("orders", 0, leader_not=leader)

Topics have three replicas, of which two must have a record before it is acknowledged to acks=all. Brokers
are numbered from 1. Nothing is left behind: neither processes nor files.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from gapless.errors import GaplessError
from gapless.testing import state
from gapless.testing.block import EndsWithBlock
from gapless.testing.broker import EmbeddedBroker
from gapless.testing.processes import free_ports
from gapless.testing.proxy import FaultProxy
from gapless.testing.state import PartitionState, Refused

if TYPE_CHECKING:
    from gapless.storage.power_cut import Loss

POLL_S = 0.01
WAIT_S = 30.0
HOST = "127.0.0.1"

T = TypeVar("T")


class WaitedInVain(GaplessError):
    """Something did not come to be in time. The message says what was, and what the brokers said."""


class Member(EmbeddedBroker):
    """One broker of a cluster."""

    def __init__(
        self,
        number: int,
        port: int,
        folder: Path,
        *,
        advertised: str,
        cluster_size: int,
        settings: Mapping[str, str],
    ) -> None:
        super().__init__(
            folder / "data" / f"broker-{number}", port, settings, log_file=folder / f"broker-{number}.log"
        )
        self.number = number
        self.name = f"broker {number}"
        self.address = (HOST, port)
        self.paused = False
        self._cluster_folder = folder / "data"
        self._advertised = advertised
        self._cluster_size = cluster_size
        self.environment["GAPLESS_RECORD_FSYNCS"] = "1"

    def start(self) -> None:
        super().start()
        self._port = self.address[1]  # what is advertised is the proxy's

    def pause(self) -> None:
        super().pause()
        self.paused = True

    def resume(self) -> None:
        super().resume()
        self.paused = False

    def kill(self) -> None:
        super().kill()
        self.paused = False

    def stop(self) -> None:
        super().stop()
        self.paused = False

    def _options(self) -> list[str | Path]:
        options = super()._options()[2:]  # without --data, which is the cluster's
        options += ["--join", self._cluster_folder, "--node-id", str(self.number)]
        return [*options, "--cluster-size", str(self._cluster_size), "--advertise", self._advertised]


class Cluster(EndsWithBlock):
    """Some brokers. `settings` are those of each, under Kafka's names, on top of the defaults of a cluster.

    With `proxy=False` clients and brokers talk to each other directly: then there are no network faults.
    What is written goes to `folder` and stays there; without one, to a folder that is removed in the end.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        proxy: bool = True,
        folder: Path | None = None,
    ) -> None:
        numbers = range(1, brokers + 1)
        self._folder = Path(tempfile.mkdtemp(prefix="gapless-cluster-")) if folder is None else folder
        self._keeps_folder = folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        self._replicas = min(3, brokers)
        self._proxy = FaultProxy(numbers) if proxy else None
        self._isolated: set[int] = set()
        ports = dict(zip(numbers, free_ports(brokers), strict=True))
        self._members: dict[int, Member] = {}
        for number, port in ports.items():
            advertised = f"{HOST}:{port}" if self._proxy is None else self._proxy.address(number)
            if self._proxy is not None:
                self._proxy.forward(number, f"{HOST}:{port}")
            self._members[number] = Member(
                number,
                port,
                self._folder,
                advertised=advertised,
                cluster_size=brokers,
                settings=settings or {},
            )
        addresses = (f"{HOST}:{port}" for port in ports.values())
        self.bootstrap = ",".join(addresses) if self._proxy is None else self._proxy.bootstrap
        """The addresses of all brokers, for clients."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs())
        super().__exit__(kind, error, trace)

    def start(self) -> None:
        """Start every broker that is down, and return when they all form one cluster."""
        down = [member for member in self._members.values() if not member.running]
        with ThreadPoolExecutor(len(self._members)) as pool:
            for started in [pool.submit(member.start) for member in down]:
                started.result()
        everybody = list(self._members)
        self.wait_for(
            lambda: all(state.brokers(member.address) == everybody for member in self._members.values()),
            f"all of {everybody} know of each other",
        )

    def close(self) -> None:
        """End everything, and remove all that was written, unless it has a folder of its own."""
        for member in self._members.values():
            member.kill()
            member.close()
        if self._proxy is not None:
            self._proxy.close()
        if not self._keeps_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def repair(self) -> None:
        """Undo all faults: a healed network, everybody resumed and running."""
        if self._proxy is not None:
            self.heal()
        for member in self._members.values():
            if member.paused:
                member.resume()
        self.start()

    # ------------------------------------------------------------------------------------- processes

    @property
    def brokers(self) -> list[int]:
        """The numbers of all brokers, running or not."""
        return list(self._members)

    @property
    def running(self) -> list[int]:
        """The numbers of those whose process is there, paused or not."""
        return [number for number, member in self._members.items() if member.running]

    def kill(self, *brokers: int) -> None:
        """SIGKILL: brokers crash, and their files keep what they wrote."""
        for member in self._chosen(brokers):
            member.kill()

    def stop(self, broker: int) -> None:
        """SIGTERM: the broker hands over what it leads and ends."""
        self._member(broker).stop()

    def restart(self, broker: int) -> None:
        """Start a broker again; one that runs is stopped cleanly before."""
        self._member(broker).restart()

    def pause(self, broker: int) -> None:
        """SIGSTOP: the broker hangs with all its connections, until `resume`."""
        self._member(broker).pause()

    def resume(self, broker: int) -> None:
        """SIGCONT: the broker goes on, not knowing that time has passed."""
        self._member(broker).resume()

    def power_cut(self, *brokers: int, seed: int = 0) -> list[Loss]:
        """Some brokers, or all if none is named, lose power: what they had not flushed is gone.

        They are down afterwards; `restart` starts them on a machine that has booted anew. What was lost is
        returned. The seed chooses what is left of writes that were not flushed: nothing, a part, garbage.
        """
        from gapless.storage.power_cut import lose_unsynced

        chosen = self._chosen(brokers or tuple(self._members))
        for member in chosen:
            member.kill()
        boot_id = str(uuid4())
        losses = []
        for member in chosen:
            losses += lose_unsynced(member.data_dir, seed + member.number)
            member.environment["GAPLESS_BOOT_ID"] = boot_id
        return losses

    def pid(self, broker: int) -> int:
        """The process of a broker."""
        return self._member(broker).pid

    def log(self, broker: int) -> str:
        """All that a broker has said, over all its starts."""
        return self._member(broker).log_file.read_text(errors="replace")

    def logs(self) -> str:
        """The end of what each broker has said."""
        return "\n".join(
            f"--- {member.name}, {_condition(member)}:\n{member.last_words()}"
            for member in self._members.values()
        )

    # --------------------------------------------------------------------------------------- network

    def isolate(self, broker: int) -> None:
        """Neither clients nor brokers reach the broker, nor does it reach others. Nobody is told."""
        self._network().isolate(broker)
        self._isolated.add(broker)

    def cut(self, first: int, second: int) -> None:
        """Two brokers do not reach each other; clients and others reach both."""
        self._network().cut(first, second)

    def slow(self, broker: int, delay_ms: float) -> None:
        """Everything to and from the broker takes so much longer, each way. 0: no longer."""
        self._network().slow(broker, delay_ms)

    def lose_acks(self, count: int = 1, broker: int | None = None) -> None:
        """The next writes happen, but their answers do not arrive: the connection breaks instead."""
        self._network().lose_acks(count, broker)

    @property
    def acks_lost(self) -> int:
        """How many answers `lose_acks` has lost so far."""
        return self._network().acks_lost

    def heal(self) -> None:
        """Mend the network. What was held back arrives, as far as anybody still waits for it."""
        self._network().heal()
        self._isolated.clear()

    # ----------------------------------------------------------------------------------------- state

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replicas: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, and return when every partition has a leader and all its replicas in sync."""
        copies = self._replicas if replicas is None else replicas
        settings = config or {}
        self._ask_anybody(
            lambda member: state.create_topic(member.address, name, partitions, copies, settings)
        )
        expected = min(copies, len(self._reachable()))
        for index in range(partitions):
            self._wait_for_partition(
                name,
                index,
                lambda seen: seen.leader is not None and len(seen.in_sync) >= expected,
                f"has a leader and {expected} replicas in sync",
                WAIT_S,
            )

    def partition(self, topic: str, partition: int = 0) -> PartitionState:
        """Leader, epoch, replicas and in-sync replicas, as those who can be reached see them."""
        seen = self._look(topic, partition)
        if seen is None:
            raise Refused(f"no broker that can be reached knows of {topic}-{partition}: create it first")
        return seen

    def leader(self, topic: str, partition: int = 0, timeout_s: float = WAIT_S) -> int:
        """The broker that leads a partition, as soon as there is one."""
        return (
            self._wait_for_partition(
                topic, partition, lambda seen: seen.leader is not None, "has a leader", timeout_s
            ).leader
            or 0
        )

    def controller(self, timeout_s: float = WAIT_S) -> int:
        """The broker that watches over the others, as soon as there is one."""
        found: list[int] = []

        def ask() -> bool:
            found.append(self._ask_anybody(lambda member: state.controller(member.address)))
            return found[-1] in self._members

        self.wait_for(ask, "there is a controller", timeout_s=timeout_s)
        return found[-1]

    def high_watermark(self, topic: str, partition: int = 0) -> int | None:
        """Up to where a partition may be read; None while its leader cannot say."""
        leader = self.partition(topic, partition).leader
        member = next((each for each in self._reachable() if each.number == leader), None)
        try:
            return None if member is None else state.high_watermark(member.address, topic, partition)
        except OSError:
            return None  # it has died meanwhile

    # --------------------------------------------------------------------------------------- waiting

    def wait_until(
        self,
        topic: str,
        partition: int = 0,
        *,
        leader: int | None = None,
        leader_not: int | None = None,
        in_sync: Iterable[int] | None = None,
        high_watermark: int | None = None,
        timeout_s: float = WAIT_S,
    ) -> PartitionState:
        """Wait until a partition is as described; `high_watermark` is the least that it must be."""
        wanted = None if in_sync is None else set(in_sync)
        said = []
        if leader is not None:
            said.append(f"is led by {leader}")
        if leader_not is not None:
            said.append(f"is led by another than {leader_not}")
        if wanted is not None:
            said.append(f"has {sorted(wanted)} in sync")
        if high_watermark is not None:
            said.append(f"can be read up to {high_watermark}")

        def holds(seen: PartitionState) -> bool:
            return (
                (leader is None or seen.leader == leader)
                and (leader_not is None or seen.leader not in (None, leader_not))
                and (wanted is None or set(seen.in_sync) == wanted)
                and (high_watermark is None or (self.high_watermark(topic, partition) or 0) >= high_watermark)
            )

        return self._wait_for_partition(topic, partition, holds, " and ".join(said) or "is there", timeout_s)

    def wait_for(
        self,
        condition: Callable[[], bool],
        what: str,
        *,
        timeout_s: float = WAIT_S,
        details: Callable[[], str] | None = None,
    ) -> None:
        """Wait until a condition of the caller's holds. A broker that does not answer makes it not hold."""
        deadline = time.monotonic() + timeout_s
        while True:
            problem: Exception | None = None
            try:
                if condition():
                    return
            except (OSError, Refused) as error:
                problem = error
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        if problem is not None:
            seen = f"; the last problem was: {problem}"
        else:
            seen = "" if details is None else f"; it is now: {details()}"
        raise WaitedInVain(f"in vain waited {timeout_s:g} s until {what}{seen}\n{self.logs()}")

    def _wait_for_partition(
        self,
        topic: str,
        partition: int,
        holds: Callable[[PartitionState], bool],
        what: str,
        timeout_s: float,
    ) -> PartitionState:
        last: list[PartitionState] = []

        def check() -> bool:
            last[:] = [self.partition(topic, partition)]
            return holds(last[0])

        self.wait_for(
            check,
            f"{topic}-{partition} {what}",
            timeout_s=timeout_s,
            details=lambda: f"{last[0]}, to be read up to {self.high_watermark(topic, partition)}",
        )
        return last[0]

    # -------------------------------------------------------------------------------------- plumbing

    def _member(self, broker: int) -> Member:
        if broker not in self._members:
            raise Refused(f"there is no broker {broker}: choose one of {', '.join(map(str, self._members))}")
        return self._members[broker]

    def _chosen(self, brokers: Iterable[int]) -> list[Member]:
        return [self._member(broker) for broker in brokers]

    def _network(self) -> FaultProxy:
        if self._proxy is None:
            raise Refused("this cluster has no proxy, and so no network faults: leave out proxy=False")
        return self._proxy

    def _reachable(self) -> list[Member]:
        """Those whose view of the cluster counts: isolated ones may not know what has happened since."""
        return [
            member
            for number, member in self._members.items()
            if member.running and not member.paused and number not in self._isolated
        ]

    def _ask_anybody(self, question: Callable[[Member], T]) -> T:
        problem: OSError | None = None
        for member in self._reachable():
            try:
                return question(member)
            except OSError as error:
                problem = error
        raise Refused(f"no broker answers: {problem or 'none runs that is neither paused nor isolated'}")

    def _look(self, topic: str, partition: int) -> PartitionState | None:
        """The newest view of a partition; of several in the same epoch, the leader's own."""
        seen = []
        for member in self._reachable():
            try:
                view = state.partition(member.address, topic, partition)
            except OSError:
                continue  # it has died meanwhile; others will do
            if view is not None:
                seen.append((view.leader_epoch, view.leader == member.number, view))
        return max(seen, key=lambda each: each[:2])[2] if seen else None


def _condition(member: Member) -> str:
    if not member.running:
        return "down"
    return "paused" if member.paused else "running"
