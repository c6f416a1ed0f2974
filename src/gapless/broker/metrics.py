"""Prometheus metrics: counted where it happens, rendered when asked for, served on a port of its own."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING

from gapless.wire.apis import ApiKey

if TYPE_CHECKING:
    from gapless.broker.shell import Shell
    from gapless.core.partition import Partition

LATENCY_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
REQUEST_MAX_BYTES = 16 * 1024
SCRAPE_TIMEOUT_S = 10.0
MAX_SCRAPERS = 8


class _Latency:
    __slots__ = ("buckets", "count", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BUCKETS_S) + 1)  # the last is beyond them all
        self.count = 0
        self.sum_s = 0.0


class Metrics:
    """Counters of one broker."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.refused_connections = 0
        self._latency: dict[int, _Latency] = {}

    def answered(self, api_key: int, arrived: float) -> None:
        """A request that arrived at `arrived` (monotonic) got its reply."""
        latency = self._latency.get(api_key)
        if latency is None:
            latency = self._latency[api_key] = _Latency()
        took_s = monotonic() - arrived
        latency.count += 1
        latency.sum_s += took_s
        latency.buckets[bisect_left(LATENCY_BUCKETS_S, took_s)] += 1

    def render_latency(self) -> Iterator[str]:
        """The latency histograms in Prometheus' text format."""
        yield "# HELP gapless_request_seconds Time from a request's arrival to its reply."
        yield "# TYPE gapless_request_seconds histogram"
        for api_key, latency in sorted(self._latency.items()):
            api = ApiKey(api_key).name.lower()
            total = 0
            for bound, count in zip(LATENCY_BUCKETS_S, latency.buckets[:-1], strict=True):
                total += count
                yield f'gapless_request_seconds_bucket{{api="{api}",le="{bound}"}} {total}'
            yield f'gapless_request_seconds_bucket{{api="{api}",le="+Inf"}} {latency.count}'
            yield f'gapless_request_seconds_sum{{api="{api}"}} {latency.sum_s:.6f}'
            yield f'gapless_request_seconds_count{{api="{api}"}} {latency.count}'


def render(shell: Shell) -> str:
    """Everything, in Prometheus' text format."""
    node = shell.node
    metrics = shell.metrics
    lines: list[str] = []

    def single(name: str, kind: str, text: str, value: float) -> None:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"))

    single("gapless_received_bytes_total", "counter", "Bytes of requests received.", metrics.received_bytes)
    single("gapless_sent_bytes_total", "counter", "Bytes of replies sent.", metrics.sent_bytes)
    single("gapless_connections", "gauge", "Open connections.", len(shell.connections))
    single(
        "gapless_refused_total",
        "counter",
        "Connections that were refused or cut.",
        metrics.refused_connections,
    )
    single("gapless_flushes_total", "counter", "Flushes of logs to disk.", shell.flusher.flushes)
    single("gapless_waiting_requests", "gauge", "Requests that wait for data or replicas.", len(node.waiting))
    single("gapless_fetch_sessions", "gauge", "Incremental fetch sessions.", len(node.sessions))
    single("gapless_topics", "gauge", "Topics.", len(node.image.topics))
    single("gapless_partitions", "gauge", "Partitions on this broker.", len(node.partitions))
    offline = sum(partition.offline is not None for partition in node.partitions.values())
    single(
        "gapless_offline_partitions",
        "gauge",
        "Partitions that cannot be written to.",
        offline + len(node.failed_partitions),
    )
    _per_partition(shell, lines)
    lines.extend(metrics.render_latency())
    return "\n".join(lines) + "\n"


def _per_partition(shell: Shell, lines: list[str]) -> None:
    partitions = shell.node.partitions.values()
    series: tuple[tuple[str, str, str, Callable[[Partition], int]], ...] = (
        ("gapless_log_size_bytes", "gauge", "Size of a partition's log.", lambda p: p.log.size_bytes),
        ("gapless_log_start_offset", "gauge", "First offset of a partition.", lambda p: p.log.start_offset),
        ("gapless_log_end_offset", "gauge", "Next offset of a partition.", lambda p: p.log.end_offset),
        (
            "gapless_high_watermark",
            "gauge",
            "First offset that consumers cannot read yet.",
            lambda p: p.high_watermark,
        ),
        (
            "gapless_records_in_total",
            "counter",
            "Records appended since the broker started.",
            lambda p: p.records_in,
        ),
        (
            "gapless_bytes_in_total",
            "counter",
            "Bytes appended since the broker started.",
            lambda p: p.bytes_in,
        ),
        ("gapless_bytes_out_total", "counter", "Bytes of records given to readers.", lambda p: p.bytes_out),
        (
            "gapless_records_out_total",
            "counter",
            "Records given to readers, by offset range.",
            lambda p: p.records_out,
        ),
    )
    for name, kind, text, value in series:
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))
        for partition in partitions:
            topic, index = partition.name
            lines.append(f'{name}{{topic="{topic}",partition="{index}"}} {value(partition)}')


class _Scraper(asyncio.Protocol):
    """One scrape: a request, its answer, the end. Whoever dawdles loses the connection, and nothing else."""

    def __init__(self, shell: Shell, others: dict[_Scraper, None]) -> None:
        self._shell = shell
        self._others = others
        self._request = b""
        self._transport: asyncio.Transport | None = None
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._timeout = asyncio.get_running_loop().call_later(SCRAPE_TIMEOUT_S, self.abort)
        self._others[self] = None
        if len(self._others) > MAX_SCRAPERS:  # the oldest would be gone by now if it were a decent one
            next(iter(self._others)).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.pop(self, None)
        if self._timeout is not None:
            self._timeout.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._request += data
        if b"\r\n\r\n" in self._request or b"\n\n" in self._request:
            self._transport.write(_answer(self._shell, self._request))
            self._transport.close()  # once all is written
        elif len(self._request) > REQUEST_MAX_BYTES:
            self.abort()

    def abort(self) -> None:
        """Make room."""
        self._others.pop(self, None)
        if self._transport is not None:
            self._transport.abort()


def _answer(shell: Shell, request: bytes) -> bytes:
    found = request.split(b" ", 2)[:2] == [b"GET", b"/metrics"]
    body = render(shell).encode() if found else b"see /metrics\n"
    head = (
        f"HTTP/1.1 {'200 OK' if found else '404 Not Found'}\r\n"
        "Content-Type: text/plain; version=0.0.4\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


async def serve(shell: Shell, host: str, port: int) -> asyncio.Server:
    """Answer GET /metrics; anything else is 404. One request per connection, few connections at a time."""
    scrapers: dict[_Scraper, None] = {}
    return await asyncio.get_running_loop().create_server(lambda: _Scraper(shell, scrapers), host, port)
