"""`gapless audit --watch`: what is new is said once, metrics can be scraped, and a finding can end it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from gapless.audit import Counts, Fault, Finding, Hop, Report
from gapless.audit.metrics import metrics
from gapless.cli.audit.watching import Page, served, watch
from gapless.errors import Unreachable, UsageError
from gapless.testing.processes import free_ports

LOST = Finding(Fault.LOST, "till", "ab" * 8, "orders", 0, 5, 6, 2, 17, 18, None, None)


def report(lost: int = 0, promised: int = 10) -> Report:
    counts = Counts(promised=promised, present=promised - lost, lost=lost)
    hop = Hop("producers → topic", {"till": counts}, [LOST] if lost else [])
    return Report("orders", "there:9092", 1_700_000_000_000, [hop], 0.5)


class Looks:
    """Gives reports one after the other, then asks to end as Ctrl-C does."""

    def __init__(self, *reports: Report | Exception) -> None:
        self._left: Iterator[Report | Exception] = iter(reports)
        self._last = reports[-1]

    def __call__(self) -> Report:
        found = next(self._left, None)
        if found is None:
            os.kill(os.getpid(), signal.SIGINT)
            found = self._last
        if isinstance(found, Exception):
            raise found
        return found


def test_what_is_new_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    looks = Looks(report(), report(), report(2), report(2))
    last = watch(looks, Page(), every_s=0, as_json=False, until_finding=False)
    assert last.verdict.exit_code == 1
    said = [line.split("  ", 1)[1] for line in capfd.readouterr().out.splitlines()]
    assert said == [
        "clean: 10 promised, 10 present",
        "lost: till (abababab) orders-0 5 to 6, between offsets 17 and 18",
        "findings: 10 promised, 8 present, 2 lost",
    ]


def test_what_was_mended_and_comes_back_is_said_again(capfd: pytest.CaptureFixture[str]) -> None:
    watch(Looks(report(2), report(), report(2)), Page(), every_s=0, as_json=False, until_finding=False)
    assert capfd.readouterr().out.count("lost: till") == 2


def test_the_first_finding_ends_it_if_that_is_wanted() -> None:
    page = Page()
    last = watch(Looks(report(), report(2), report()), page, every_s=0, as_json=False, until_finding=True)
    assert last.hops[0].counts.lost == 2
    assert 'gapless_audit_faults{topic="orders",hop="producers → topic",source="till"} 2' in page.text


def test_a_cluster_that_is_away_is_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    away = Unreachable("cannot reach a Kafka broker at there:9092")
    watch(Looks(report(), away, report(promised=11)), Page(), every_s=0, as_json=False, until_finding=False)
    shown = capfd.readouterr()
    assert "cannot reach a Kafka broker at there:9092; trying again" in shown.err
    assert "clean: 11 promised" in shown.out
    with pytest.raises(Unreachable):
        watch(Looks(away), Page(), every_s=0, as_json=False, until_finding=False)


def test_json_is_a_document_for_each_look(capfd: pytest.CaptureFixture[str]) -> None:
    watch(Looks(report(), report(2)), Page(), every_s=0, as_json=True, until_finding=True)
    verdicts = [json.loads(line)["verdict"] for line in capfd.readouterr().out.splitlines()]
    assert verdicts == ["clean", "findings"]


def test_it_waits_between_two_looks() -> None:
    times: list[float] = []

    def look() -> Report:
        times.append(time.monotonic())
        if len(times) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return report()

    watch(look, Page(), every_s=0.2, as_json=False, until_finding=False)
    assert len(times) == 3
    assert times[1] - times[0] >= 0.19


def test_an_interruption_ends_the_wait_between_two_looks() -> None:
    def look() -> Report:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        return report()

    watch(look, Page(), every_s=3600, as_json=False, until_finding=False)


def test_metrics_are_served() -> None:
    (port,) = free_ports(1)
    with served(port) as page:
        page.text = metrics(report(2))
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://127.0.0.1:{port}/")
        with pytest.raises(UsageError, match="cannot serve metrics"), served(port):
            pass
    assert 'gapless_audit_verdict{topic="orders"} 1' in text
    assert 'gapless_audit_records{topic="orders",hop="producers → topic",state="lost"} 2' in text
    assert "gapless_audit_time_seconds{" in text
