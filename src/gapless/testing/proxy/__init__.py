"""A Kafka-aware network between clients and brokers, and among brokers, that fails as it is told.

    with FaultProxy([1]) as proxy:
        # a broker 1 that advertises proxy.address(1) and listens on 127.0.0.1:9092
        proxy.forward(1, "127.0.0.1:9092")
        proxy.lose_acks(1)

Brokers must advertise the proxy's addresses, so that everybody, other brokers too, comes through it; for
a broker that cannot, `rename=True` replaces addresses in what it answers to clients. It knows brokers of
Gapless and of Apache Kafka from clients by the names under which they connect.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from gapless.errors import GaplessError
from gapless.testing.proxy.faults import Fate, Network

__all__ = ["Fate", "FaultProxy", "ProxyFailed"]

HOST = "127.0.0.1"
_STOP_TIMEOUT_S = 5.0


class ProxyFailed(GaplessError):
    """The proxy does not run, or a broker is not behind it. The message says which."""


class FaultProxy:
    """The network in front of some brokers. Its addresses are open from the beginning; `heal` mends it.

    Faults hold for connections that exist and for new ones. What is cut off is neither refused nor closed:
    it is silent, as a network is that loses packets, and goes on when it is healed.
    """

    def __init__(self, brokers: Sequence[int], *, rename: bool = False) -> None:
        self._network = Network()
        sockets = {broker: socket.create_server((HOST, 0), backlog=1024) for broker in brokers}
        self._ports = {broker: each.getsockname()[1] for broker, each in sockets.items()}
        numbers = {broker: each.fileno() for broker, each in sockets.items()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__ + ".process", json.dumps({"sockets": numbers, "rename": rename})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=list(numbers.values()),
            start_new_session=True,  # a Ctrl-C at the terminal is not its business
        )
        for each in sockets.values():
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections and the proxy."""
        if self._process.stdin is not None and self._process.stdout is not None:
            self._process.stdin.close()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()

    # -------------------------------------------------------------------------------------- addresses

    def address(self, broker: int) -> str:
        """Where clients and other brokers find a broker."""
        self._check(broker)
        return f"{HOST}:{self._ports[broker]}"

    @property
    def bootstrap(self) -> str:
        """All addresses, for clients."""
        return ",".join(self.address(broker) for broker in self._ports)

    def forward(self, broker: int, address: str) -> None:
        """Say where a broker really listens. Until then connections to it are closed."""
        self._check(broker)
        host, _, port = address.rpartition(":")
        self._tell({"targets": {broker: (host, int(port))}})

    # ----------------------------------------------------------------------------------------- faults

    def isolate(self, broker: int) -> None:
        """Nobody reaches the broker, and it reaches nobody."""
        self._check(broker)
        if broker not in self._network.isolated:
            self._network.isolated.append(broker)
        self._tell({"network": self._network.to_json()})

    def cut(self, first: int, second: int) -> None:
        """Two brokers do not reach each other; everybody else reaches both."""
        self._check(first)
        self._check(second)
        if first == second:
            raise ProxyFailed(f"broker {first} is one broker: cut() takes two, isolate() one")
        self._network.cuts.append((first, second))
        self._tell({"network": self._network.to_json()})

    def slow(self, broker: int, delay_ms: float) -> None:
        """Everything to and from the broker takes so much longer, each way. 0: no longer."""
        self._check(broker)
        self._network.slow_ms[broker] = delay_ms
        self._tell({"network": self._network.to_json()})

    def lose_acks(self, count: int = 1, broker: int | None = None) -> None:
        """The next Produce requests (to one broker, or to any) are done, but not answered.

        The connection is closed instead, and with it go answers to whatever else was under way on it.
        """
        self.decide([Fate.LOSE_ANSWER] * count, broker)

    def decide(self, fates: Iterable[Fate], broker: int | None = None) -> None:
        """The fates of the next Produce requests that want an answer, one by one."""
        if broker is not None:
            self._check(broker)
        self._tell({"fates": list(fates), "broker": broker})

    def heal(self) -> None:
        """No faults any more; those planned by `lose_acks` and `decide` do not come."""
        self._network = Network()
        self._tell({"network": self._network.to_json(), "deliver_all": True})

    @property
    def fates(self) -> Counter[Fate]:
        """How often each misfortune has come true."""
        return Counter({Fate(fate): count for fate, count in self._tell({})["done"].items()})

    @property
    def acks_lost(self) -> int:
        """How many answers to Produce requests were lost."""
        return self.fates[Fate.LOSE_ANSWER]

    def _check(self, broker: int) -> None:
        if broker not in self._ports:
            known = ", ".join(map(str, self._ports))
            raise ProxyFailed(f"there is no broker {broker} behind the proxy: choose one of {known}")

    def _tell(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command and wait until it holds."""
        if self._process.stdin is None or self._process.stdout is None or self._process.stdin.closed:
            raise ProxyFailed("the proxy was closed")
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProxyFailed(f"the proxy has ended with exit code {self._process.poll()}") from None
        answer = self._process.stdout.readline()
        if not answer:
            raise ProxyFailed(f"the proxy has ended with exit code {self._process.wait()}")
        obeyed: dict[str, Any] = json.loads(answer)
        return obeyed
