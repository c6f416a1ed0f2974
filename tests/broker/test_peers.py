"""Calls to other brokers: each is answered once, whatever the other side does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gapless.broker.peers import Peers
from gapless.core.contract import Call, PeerAnswered
from gapless.core.image import Image
from gapless.core.records import BrokerRegistered
from gapless.wire.apis import ApiKey
from gapless.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from gapless.wire.request import RequestHeader, decode_header, encode_reply

Answer = Callable[[RequestHeader, asyncio.StreamWriter], Awaitable[None]]


class World:
    """One peer, number 2, that answers as a test wants it to; and what our side hears."""

    def __init__(self) -> None:
        self.answers: list[PeerAnswered] = []
        self.suspected: list[int] = []
        self.asked: list[RequestHeader] = []
        self.connections = 0
        self.image = Image()
        self.heard = asyncio.Event()

    async def run(self, answer: Answer, use: Callable[[Peers], Awaitable[None]]) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            self.heard.set()
            writers.append(writer)
            try:
                while True:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    header, _ = decode_header(memoryview(await reader.readexactly(size)))
                    self.asked.append(header)
                    await answer(header, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass  # the other side has left

        writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.image.replay(BrokerRegistered(2, "127.0.0.1", port, 1))
        peers = Peers(asyncio.get_running_loop(), 1, lambda: self.image, self._report, self.suspected.append)
        try:
            async with asyncio.timeout(10):
                await use(peers)
        finally:
            peers.close()
            server.close()
            for writer in writers:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    def _report(self, answered: PeerAnswered) -> None:
        self.answers.append(answered)
        self.heard.set()

    async def wait_for(self, answers: int, connections: int = 0) -> None:
        while len(self.answers) < answers or self.connections < connections:
            self.heard.clear()
            await self.heard.wait()


def ping(node_id: int = 2, timeout_ms: int = 5000) -> Call:
    return Call(node_id, int(ApiKey.API_VERSIONS), 0, ApiVersionsRequest(), timeout_ms)


async def well(header: RequestHeader, writer: asyncio.StreamWriter) -> None:
    for part in encode_reply(header, ApiVersionsResponse(error_code=0, api_keys=[])):
        writer.write(bytes(part))  # type: ignore[arg-type]


async def not_at_all(header: RequestHeader, writer: asyncio.StreamWriter) -> None:
    pass


async def by_hanging_up(header: RequestHeader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def in_tongues(header: RequestHeader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\0\0\0\x08\0\0\0\x63what")


def test_calls_are_answered_in_order_on_one_connection() -> None:
    world = World()
    calls = [ping() for _ in range(5)]

    async def use(peers: Peers) -> None:
        for call in calls:
            peers.call(call)
        assert not world.answers  # never before the caller has finished
        await world.wait_for(5)

    asyncio.run(world.run(well, use))
    assert [answer.call for answer in world.answers] == calls
    assert all(answer.message.error_code == 0 for answer in world.answers)
    assert world.connections == 1
    assert {header.client_id for header in world.asked} == {"gapless-broker-1"}


def test_no_answer_in_time_is_none_and_the_next_call_has_a_new_connection() -> None:
    world = World()

    async def use(peers: Peers) -> None:
        for number in (1, 2):
            peers.call(ping(timeout_ms=50))
            await world.wait_for(number, number)  # on a busy machine one is over before it is seen there

    asyncio.run(world.run(not_at_all, use))
    assert [answer.message for answer in world.answers] == [None, None]
    assert world.connections == 2
    assert not world.suspected  # it is there


def test_a_broken_connection_answers_all_with_none_and_raises_suspicion() -> None:
    world = World()

    async def use(peers: Peers) -> None:
        peers.call(ping())
        peers.call(ping())
        await world.wait_for(2)

    asyncio.run(world.run(by_hanging_up, use))
    assert [answer.message for answer in world.answers] == [None, None]
    assert world.suspected == [2]


def test_who_cannot_be_understood_is_not_listened_to() -> None:
    world = World()

    async def use(peers: Peers) -> None:
        peers.call(ping())
        await world.wait_for(1)

    asyncio.run(world.run(in_tongues, use))
    assert [answer.message for answer in world.answers] == [None]


def test_a_refused_connection_and_an_unknown_broker_are_told_at_once() -> None:
    world = World()

    async def use(peers: Peers) -> None:
        world.image.replay(BrokerRegistered(3, "127.0.0.1", 1, 1))
        peers.call(ping(3))
        peers.call(ping(4))
        await world.wait_for(2)

    asyncio.run(world.run(well, use))
    assert [answer.message for answer in world.answers] == [None, None]
    assert world.suspected == [3]


def test_a_broker_that_has_moved_is_called_at_its_new_address() -> None:
    world, later = World(), World()

    async def use(peers: Peers) -> None:
        peers.call(ping())
        await world.wait_for(1)

        async def use_later(_: Peers) -> None:
            world.image.replay(later.image.brokers[2])
            peers.call(ping())
            await world.wait_for(2)

        await later.run(well, use_later)

    asyncio.run(world.run(well, use))
    assert [answer.message is None for answer in world.answers] == [False, False]
    assert (len(world.asked), len(later.asked)) == (1, 1)
