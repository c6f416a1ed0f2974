"""The proxy's process: one listening socket per broker, ruled by lines of JSON on its standard input.

It is a process of its own because a thread would share an interpreter with the test: a busy test would then
slow the network down. It ends when its input does.

    python -m gapless.testing.proxy.process '{"sockets": {"1": 5}, "rename": false}'
    {"network": {"isolated": [1], "cuts": [], "slow_ms": {}}}
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from functools import partial
from struct import Struct
from typing import Any

import uvloop

from gapless.testing.proxy.faults import Fate, Network, Plan
from gapless.testing.proxy.link import Link

_PORT = Struct(">i")


class Proxy:
    """The state of the network, and all connections through it."""

    def __init__(self, sockets: dict[int, socket.socket], rename: bool) -> None:
        self.network = Network()
        self.plan = Plan()
        self.links: set[Link] = set()
        self.renames = rename
        self._sockets = sockets
        self._targets: dict[int, tuple[str, int]] = {}

    async def serve(self) -> None:
        """Carry connections until the input ends."""
        loop = asyncio.get_running_loop()
        servers = [
            await loop.create_server(partial(self._accept, broker), sock=each)
            for broker, each in self._sockets.items()
        ]
        commands = asyncio.StreamReader(limit=1 << 20)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        while line := await commands.readline():
            answer = json.dumps(self._obey(json.loads(line)))
            os.write(sys.stdout.fileno(), answer.encode() + b"\n")
        for server in servers:
            server.close()
        for link in list(self.links):
            link.abort()

    def _accept(self, broker: int) -> asyncio.Protocol:
        return Link(broker, self).accepted()

    def target(self, broker: int) -> tuple[str, int] | None:
        """See `Surroundings`."""
        return self._targets.get(broker)

    def renamed(self, answer: bytes) -> bytes:
        """See `Surroundings`. Host and port follow each other in every message that names brokers."""
        for broker, (host, port) in self._targets.items():
            ours = self._sockets[broker].getsockname()[1]
            answer = answer.replace(host.encode() + _PORT.pack(port), host.encode() + _PORT.pack(ours))
        return answer

    def _obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Take what a command changes; answer with what has happened so far."""
        for broker, (host, port) in command.get("targets", {}).items():
            self._targets[int(broker)] = (host, port)
        if "network" in command:
            self.network = Network.from_json(command["network"])
            for link in list(self.links):
                link.update()
        if command.get("deliver_all"):
            self.plan.clear()
        if "fates" in command:
            self.plan.add([Fate(fate) for fate in command["fates"]], command["broker"])
        return {"done": self.plan.done, "connections": len(self.links)}


def main() -> None:
    """Serve with the sockets that were inherited."""
    given = json.loads(sys.argv[1])
    sockets = {int(broker): socket.socket(fileno=number) for broker, number in given["sockets"].items()}
    uvloop.run(Proxy(sockets, given["rename"]).serve())


if __name__ == "__main__":
    main()
