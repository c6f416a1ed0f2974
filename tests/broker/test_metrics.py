"""The metrics: well-formed, true, and no way to hurt the broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.broker.conftest import BrokerMaker
from tests.broker.process import Broker, read_to_end, unhurt, wait_until
from tests.broker.raw import PATIENCE_S, batch_of, fetch_request
from tests.broker.test_connections import create_topic

MB = 2**20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(metrics=True) as shared:
        yield shared


def of(topic: str, name: str) -> str:
    return f'gapless_{name}{{topic="{topic}",partition="0"}}'


def scraper(broker: Broker, request: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", broker.metrics_port or 0), timeout=PATIENCE_S)
    connection.sendall(request)
    return connection


def test_every_metric_has_its_help_and_type(broker: Broker) -> None:
    with broker.connect() as client:
        client.metadata("described")
    text = broker.scrape_text()
    described = {
        line.split(" ")[2]: line.split(" ")[3] for line in text.splitlines() if line.startswith("# TYPE")
    }
    helped = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert helped == set(described)
    assert set(described.values()) <= {"counter", "gauge", "histogram"}
    for name in broker.scrape():
        family = name.partition("{")[0]
        for suffix in ("_bucket", "_sum", "_count"):
            family = family.removesuffix(suffix) if described.get(family) is None else family
        assert family in described
        assert (described[family] == "counter") == family.endswith("_total")


def test_what_goes_in_and_out_is_counted_to_the_record(broker: Broker) -> None:
    batches = [batch_of(*[b"record"] * count) for count in (1, 5, 20)]
    with broker.connect() as client:
        client.metadata("counted")
        for batch in batches:
            client.produce("counted", batch)
        values = broker.scrape()
        size = sum(map(len, batches))
        assert values[of("counted", "records_in_total")] == 26
        assert values[of("counted", "bytes_in_total")] == size
        assert values[of("counted", "log_size_bytes")] == size
        assert values[of("counted", "log_end_offset")] == values[of("counted", "high_watermark")] == 26
        assert values[of("counted", "records_out_total")] == values[of("counted", "bytes_out_total")] == 0
        client.fetch("counted", 0)  # everything
        client.fetch("counted", 3)  # from within the second batch on: 23 records, but whole batches
        client.fetch("counted", 1, max_bytes=len(batches[1]))  # one batch
        client.fetch("counted", 26)  # nothing
        client.fetch("counted", 0, max_wait_ms=100, min_bytes=MB)  # waits, and gets what there is
        values = broker.scrape()
        assert values[of("counted", "records_out_total")] == 26 + 23 + 5 + 26
        whole, tail, one = size, len(batches[1]) + len(batches[2]), len(batches[1])
        assert values[of("counted", "bytes_out_total")] == whole + tail + one + whole


def test_bytes_on_the_wire_are_counted(broker: Broker) -> None:
    before = broker.scrape()
    with broker.connect() as client:
        client.metadata("wire")
        client.produce("wire", batch_of(bytes(100_000)))
        client.fetch("wire", 0)
    after = broker.scrape()
    for name in ("gapless_received_bytes_total", "gapless_sent_bytes_total"):
        assert 100_000 < after[name] - before[name] < 110_000


def test_latencies_are_histograms_by_api(broker: Broker) -> None:
    with broker.connect() as client:
        client.metadata("timed")
        before = broker.scrape()
        for _ in range(7):
            client.produce("timed", batch_of(b"record"))
        client.fetch("timed", 7, max_wait_ms=150)
    after = broker.scrape()

    def buckets(api: str, values: dict[str, float]) -> list[float]:
        start = f'gapless_request_seconds_bucket{{api="{api}",le="'
        return [value for name, value in values.items() if name.startswith(start)]

    for api in ("produce", "fetch", "metadata"):
        counts = buckets(api, after)
        assert counts == sorted(counts)
        assert counts[-1] == after[f'gapless_request_seconds_count{{api="{api}"}}']
        assert f'gapless_request_seconds_bucket{{api="{api}",le="+Inf"}}' in after
    produced = 'gapless_request_seconds_count{api="produce"}'
    assert after[produced] - before.get(produced, 0) == 7
    waited = 'gapless_request_seconds_sum{api="fetch"}'
    assert after[waited] - before.get(waited, 0) >= 0.14
    slow = [
        now - then
        for now, then in zip(buckets("fetch", after), buckets("fetch", before) or [0] * 11, strict=True)
    ]
    assert slow[:7] == [0] * 7, "longer than 100 ms"
    assert slow[-1] == 1


def test_gauges_follow_what_they_measure(broker: Broker) -> None:
    with broker.connect() as client:
        client.metadata("gauged")
        before = broker.scrape()
        create_topic(client, "gauged-more", partitions=5)
        client.send_message(fetch_request("gauged", 0, max_wait_ms=60_000), 11)
        wait_until(lambda: broker.scrape()["gapless_waiting_requests"] == 1, "the fetch waits")
        after = broker.scrape()
        assert after["gapless_connections"] >= 1
        assert after["gapless_topics"] == before["gapless_topics"] + 1
        assert after["gapless_partitions"] == before["gapless_partitions"] + 5
    wait_until(lambda: broker.scrape()["gapless_waiting_requests"] == 0, "nobody waits")
    with broker.connect() as client:
        client.send(b"\xff\xff\xff\xff")
        client.wait_until_closed()
    assert broker.scrape()["gapless_refused_total"] == before["gapless_refused_total"] + 1


def test_offline_partitions_are_counted(start_broker: BrokerMaker) -> None:
    limited = ("/bin/sh", "-c", 'ulimit -f 2000; exec "$@"', "sh")
    broker = start_broker(metrics=True, prefix=limited)
    with broker.connect() as client:
        client.metadata("filling")
        assert broker.scrape()["gapless_offline_partitions"] == 0
        client.produce("filling", batch_of(bytes(MB - 200)))
        assert client.produce("filling", batch_of(bytes(MB - 200))).error_code
        assert broker.scrape()["gapless_offline_partitions"] == 1


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET / HTTP/1.1",
        b"POST /metrics HTTP/1.1",
        b"GET /metricsx HTTP/1.1",
        b"garbage",
        b"\x00\xff\x16\x03",
        b"",
    ],
)
def test_other_requests_find_nothing(broker: Broker, request_line: bytes) -> None:
    with scraper(broker, request_line + b"\r\n\r\n") as connection:
        assert read_to_end(connection).startswith(b"HTTP/1.1 404")


def test_broken_scrapers_harm_neither_clients_nor_other_scrapers(broker: Broker) -> None:
    before = broker.pss_mb()
    with unhurt(broker), ExitStack() as scrapers:
        for number in range(60):
            behaviour = (
                b"",  # says nothing
                b"GET /metrics HT",  # does not finish
                b"GET /metrics HTTP/1.1\r\nHost: x\r\n",  # does not come to an end
                b"GET /metrics HTTP/1.1\r\n\r\n",  # does not read
                b"x" * 100_000,  # too much
            )[number % 5]
            connection = scrapers.enter_context(scraper(broker))
            try:
                connection.sendall(behaviour)
            except ConnectionError:
                continue
        assert broker.scrape()["gapless_topics"] >= 1
        assert broker.pss_mb() - before < 20
    assert "Traceback" not in broker.said()


def test_a_stop_does_not_wait_for_scrapers(start_broker: BrokerMaker) -> None:
    broker = start_broker(metrics=True)
    with scraper(broker, b"GET /metrics HTTP/1.1\r\n"), scraper(broker):
        broker.scrape()
        assert broker.stop_and_tell() == 0
    assert "Traceback" not in broker.said()
