"""A network that loses requests, halves of requests and answers, between a client and all brokers.

It cuts Kafka's stream into messages and decides the fate of each Produce request by a given plan; everything
else passes. Each broker has a port of the proxy, and brokers' addresses in metadata are replaced by the
proxy's, so that clients stay behind it.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial

from gapless.wire.apis import ApiKey

Address = tuple[str, int]

_NAMES_BROKERS = (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER)


class Fate(Enum):
    """What happens to a Produce request and to its answer."""

    DELIVER = auto()
    LOSE_REQUEST = auto()
    """The connection is cut before the broker sees anything of it."""
    TEAR_REQUEST = auto()
    """The broker gets half of it; then the connection is cut."""
    LOSE_ANSWER = auto()
    """The broker has done it; the connection is cut instead of the answer."""
    SILENCE = auto()
    """The broker has done it; the connection stays open, and neither this nor a later answer comes."""


class LossyProxy:
    """Made by `lossy_proxy`. `fates` counts what was done to Produce requests."""

    def __init__(self, bootstrap: str, plan: Iterable[Fate]) -> None:
        self._brokers = [address.rsplit(":", 1) for address in bootstrap.split(",")]
        self._plan = iter(plan)
        self.fates: Counter[Fate] = Counter()
        self.bootstrap = ""
        """The proxy's addresses, for clients."""
        self._replacements: dict[bytes, bytes] = {}
        self._connections: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.WriteTransport] = []

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        servers = []
        for host, port in self._brokers:
            server = await asyncio.start_server(partial(self._on_connection, (host, int(port))), host, 0)
            servers.append(server)
            own_port = server.sockets[0].getsockname()[1]
            self._replacements[_encoded(host, int(port))] = _encoded(host, own_port)
        hosts = (host for host, _ in self._brokers)
        ports = (server.sockets[0].getsockname()[1] for server in servers)
        self.bootstrap = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
        ready.set()
        await stop.wait()
        for server in servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)  # in which the transports say good-bye to the loop

    def _on_connection(
        self, broker: Address, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        """Not a coroutine itself: what is accepted must be known even if its task never gets to run."""
        self._transports.append(to_client.transport)
        self._connections.append(asyncio.create_task(self._carry(broker, from_client, to_client)))

    async def _carry(
        self, broker: Address, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        """Carry one connection until either side, or a fate, ends it."""
        from_broker, to_broker = await asyncio.open_connection(*broker)
        self._transports.append(to_broker.transport)
        under_way: dict[int, tuple[int, Fate]] = {}
        pumps = [
            asyncio.create_task(self._carry_requests(from_client, to_broker, under_way)),
            asyncio.create_task(self._carry_answers(from_broker, to_client, under_way)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            to_client.transport.abort()
            to_broker.close()

    async def _carry_requests(
        self,
        from_client: asyncio.StreamReader,
        to_broker: asyncio.StreamWriter,
        under_way: dict[int, tuple[int, Fate]],
    ) -> None:
        while (message := await _next_message(from_client)) is not None:
            api_key, _, correlation_id = struct.unpack_from(">hhi", message)
            fate = self._decide(api_key)
            under_way[correlation_id] = (api_key, fate)
            if fate is Fate.LOSE_REQUEST:
                return
            framed = struct.pack(">i", len(message)) + message
            if fate is Fate.TEAR_REQUEST:
                to_broker.write(framed[: len(framed) // 2])
                await to_broker.drain()
                return
            to_broker.write(framed)
            await to_broker.drain()

    async def _carry_answers(
        self,
        from_broker: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        under_way: dict[int, tuple[int, Fate]],
    ) -> None:
        silent = False
        while (message := await _next_message(from_broker)) is not None:
            api_key, fate = under_way.pop(struct.unpack_from(">i", message)[0])
            if fate is Fate.LOSE_ANSWER:
                return
            silent |= fate is Fate.SILENCE
            if silent:
                continue
            if api_key in _NAMES_BROKERS:
                for real, own in self._replacements.items():
                    message = message.replace(real, own)
            to_client.write(struct.pack(">i", len(message)) + message)
            await to_client.drain()

    def _decide(self, api_key: int) -> Fate:
        if api_key != ApiKey.PRODUCE:
            return Fate.DELIVER
        fate = next(self._plan, Fate.DELIVER)
        self.fates[fate] += 1
        return fate


def _encoded(host: str, port: int) -> bytes:
    """Return an address as metadata contains it."""
    return host.encode() + struct.pack(">i", port)


async def _next_message(stream: asyncio.StreamReader) -> bytes | None:
    try:
        (size,) = struct.unpack(">i", await stream.readexactly(4))
        return await stream.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


@contextmanager
def lossy_proxy(bootstrap: str, plan: Iterable[Fate]) -> Iterator[LossyProxy]:
    """A proxy in a thread of its own, for as long as the block; when the plan has ended it loses nothing."""
    proxy = LossyProxy(bootstrap, plan)
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(proxy.serve(ready, stop)))
    thread.start()
    try:
        if not ready.wait(10):
            raise TimeoutError("the proxy did not start")
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
