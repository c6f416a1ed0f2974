"""What `gapless audit --watch` does: looks again and again, says what is new, and serves metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from gapless.cli.output import note, say, say_json
from gapless.cli.pipeline.stopping import Stopping
from gapless.errors import Unreachable, UsageError

if TYPE_CHECKING:
    from gapless.audit.findings import Counts, Report

_SHOWN = 20
_ALWAYS = ("promised", "present")
_AGAIN_S = 60.0
"""A line comes at least so often, so that silence means that something is wrong."""


class Page:
    """The last metrics."""

    def __init__(self) -> None:
        self.text = ""


@contextmanager
def served(port: int | None) -> Iterator[Page]:
    """Metrics at http://127.0.0.1:PORT/metrics for the time of the block; nowhere without a port."""
    page = Page()
    if port is None:
        yield page
        return
    server = _server(port, page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield page
    finally:
        server.shutdown()
        server.server_close()


def watch(
    look: Callable[[], Report],
    page: Page,
    *,
    every_s: float,
    as_json: bool,
    until_finding: bool,
) -> Report:
    """Look until Ctrl-C, or until something is found; the last report."""
    from gapless.audit.metrics import metrics

    stop = threading.Event()
    said: set[str] = set()
    line, line_s, report = "", 0.0, None
    with Stopping(stop.set, lambda _: note("ending after this look (Ctrl-C again ends at once)")):
        while True:
            began_s = time.monotonic()
            try:
                report = look()
            except Unreachable as error:
                # A cluster may be away for a while; what it says then is judged when it is back.
                if report is None:
                    raise
                note(f"{_now()}  {error}; trying again")
            else:
                page.text = metrics(report)
                if as_json:
                    say_json(report.as_json())
                else:
                    said = _say_news(report, said)
                    if _summary(report) != line or time.monotonic() - line_s > _AGAIN_S:
                        line, line_s = _summary(report), time.monotonic()
                        say(f"{_now()}  {line}")
                if until_finding and report.verdict.exit_code == 1:
                    return report
            if stop.wait(max(every_s - (time.monotonic() - began_s), 0.0)):
                return report


def _say_news(report: Report, said: set[str]) -> set[str]:
    """Say what was not said at the look before. What there is to say now; no more is remembered."""
    every = [str(finding) for hop in report.hops for finding in hop.findings]
    news = [text for text in every if text not in said]
    for text in news[:_SHOWN]:
        say(f"{_now()}  {text}")
    if len(news) > _SHOWN:
        say(f"{_now()}  and {len(news) - _SHOWN:,} more findings")
    return set(every)


def _summary(report: Report) -> str:
    to_topic, *to_sinks = report.hops
    parts = [_figures(to_topic.counts), *(f"{hop.name}: {_figures(hop.counts)}" for hop in to_sinks)]
    doubts = [doubt for hop in report.hops for doubt in hop.doubts]
    return f"{report.verdict}: {'; '.join([*parts, *doubts])}"


def _figures(counts: Counts) -> str:
    parts = [f"{counts.promised:,} promised", f"{counts.present:,} present"]
    others = {name: count for name, count in asdict(counts).items() if count and name not in _ALWAYS}
    return ", ".join([*parts, *(f"{count:,} {name}" for name, count in others.items())])


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"


def _server(port: int, page: Page) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:  # so the library calls it
            known = self.path == "/metrics"
            body = page.text.encode() if known else b"see /metrics\n"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Scrapes are no news."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UsageError(f"cannot serve metrics on port {port}: {error.strerror}") from None
