"""Many connections from one thread, at so little cost that the broker is what is measured.

No client library keeps up with 200 connections on a part of one core, so this speaks the protocol itself:
every connection sends the same ready-made Produce request, waits for its reply, and sends it again.
"""

from __future__ import annotations

import select
import socket
import time
from struct import Struct

from benchmarks.clients.jobs import Connections
from benchmarks.meters import Usage, pss_bytes
from benchmarks.statistics import percentile
from gapless.wire.records import build_batch

_API_VERSION = 8  # the last one without tagged fields; all brokers of today accept it
_HEADER = Struct(">hhih")  # Produce, version, correlation id, no client id
_BODY = Struct(">hhii")  # no transactional id, acks, timeout, one topic
_PARTITION = Struct(">iii")  # one partition, its number, bytes of records
_LENGTH = Struct(">i")
_ACKS_ALL = -1
_TIMEOUT_MS = 30_000


class Refused(RuntimeError):
    """The broker did not acknowledge a request."""


def produce_frame(topic: str, records: int, record_bytes: int) -> bytes:
    """A whole Produce request for partition 0, its length in front."""
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch([(now_ms, None, b"x" * record_bytes)] * records)
    name = topic.encode()
    request = b"".join(
        (
            _HEADER.pack(0, _API_VERSION, 1, -1),
            _BODY.pack(-1, _ACKS_ALL, _TIMEOUT_MS, 1),
            len(name).to_bytes(2, "big") + name,
            _PARTITION.pack(1, 0, len(batch)),
            batch,
        )
    )
    return _LENGTH.pack(len(request)) + request


class _Fleet:
    """The connections, each with at most one request under way."""

    def __init__(self, job: Connections) -> None:
        self._frame = produce_frame(job.topic, job.records_per_request, job.record_bytes)
        # Reply: length, correlation id, one topic, its name, one partition, its number; then the error code.
        self._error_at = 4 + 4 + 4 + 2 + len(job.topic.encode()) + 4 + 4
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        host, port = job.bootstrap.rsplit(":", 1)
        for _ in range(job.connections):
            connection = socket.create_connection((host, int(port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection, select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()
        for connection in self._sockets.values():
            connection.close()

    def exchange(self, requests: int) -> list[int]:
        """Send so many requests in all and take their replies; the time that each took, in nanoseconds."""
        clock, frame, sockets = time.perf_counter_ns, self._frame, self._sockets
        took_ns: list[int] = []
        sent_at: dict[int, int] = {}
        unsent = requests
        for number, connection in sockets.items():
            if unsent:
                unsent -= 1
                sent_at[number] = clock()
                connection.sendall(frame)
        while len(took_ns) < requests:
            for number, _ in self._poll.poll():
                connection = sockets[number]
                self._take_reply(connection)
                now_ns = clock()
                took_ns.append(now_ns - sent_at[number])
                if unsent:
                    unsent -= 1
                    sent_at[number] = now_ns
                    connection.sendall(frame)
        return took_ns

    def _take_reply(self, connection: socket.socket) -> None:
        reply = connection.recv(4096)
        while len(reply) < 4 or len(reply) < 4 + _LENGTH.unpack_from(reply)[0]:
            more = connection.recv(4096)
            if not more:
                raise Refused("the broker closed a connection")
            reply += more
        if reply[self._error_at : self._error_at + 2] != b"\x00\x00":
            raise Refused(f"the broker answered {reply[self._error_at : self._error_at + 2].hex()}")


def run(job: Connections) -> dict[str, float]:
    """Each connection sends one request before the clocks start, so that none of them is new."""
    fleet = _Fleet(job)
    try:
        fleet.exchange(job.connections)
        usage = Usage.begin(job.broker_pids)
        took_ns = sorted(fleet.exchange(job.requests))
        answer = usage.end()
        answer["broker_pss_bytes"] = pss_bytes(job.broker_pids)
    finally:
        fleet.close()
    return {**answer, "p50_us": percentile(took_ns, 50) / 1000, "p99_us": percentile(took_ns, 99) / 1000}
