"""How cost grows with partitions and with connections: the same total, spread wider and wider."""

from __future__ import annotations

from benchmarks.clients.jobs import Connections, Produce
from benchmarks.meters import pss_bytes
from benchmarks.scenarios.step import MILLION, Figure, Step, throughput, throughput_figures
from benchmarks.session import Session
from benchmarks.sizes import Sizes
from benchmarks.statistics import at_least

RUN_LENGTH = 100
RECORDS_PER_REQUEST = 10


def partition_steps(sizes: Sizes) -> list[Step]:
    """librdkafka sends a request per partition: more partitions mean more and smaller requests."""
    return [_partitions(count, sizes.partitions_total) for count in sizes.partitions]


def _partitions(count: int, records: int) -> Step:
    def measure(session: Session) -> dict[str, float]:
        topic = session.create_topic(f"over-{count}-partitions", count)
        job = Produce(
            session.bootstrap,
            session.broker_pids,
            topic,
            records,
            100,
            partitions=count,
            run_length=RUN_LENGTH,
        )
        answer = session.run(job)
        return {**throughput(answer, records), "memory": pss_bytes(session.broker_pids) / MILLION}

    title = f"produce {records:,} × 100 B over {count:,} partition{'s' * (count > 1)}"
    figures = [*throughput_figures(at_least(1.0), None), Figure("memory", "memory (PSS)", "MB", False)]
    return Step("partitions", title, figures, measure, str(count))


def connection_steps(sizes: Sizes) -> list[Step]:
    """Requests of ten records, one under way per connection, from a load generator that costs little."""
    return [_connections(count, sizes.connections_requests) for count in sizes.connections]


def _connections(count: int, requests: int) -> Step:
    records = requests * RECORDS_PER_REQUEST

    def measure(session: Session) -> dict[str, float]:
        topic = session.create_topic(f"from-{count}-connections")
        job = Connections(
            session.bootstrap, session.broker_pids, topic, count, requests, RECORDS_PER_REQUEST, 100
        )
        answer = session.run(job)
        return {
            **throughput(answer, records),
            "p50": answer["p50_us"],
            "p99": answer["p99_us"],
            "memory": answer["broker_pss_bytes"] / MILLION,
        }

    title = f"{requests:,} requests of 10 × 100 B from {count:,} connection{'s' * (count > 1)}"
    figures = [
        *throughput_figures(None, None),
        Figure("p50", "time to acknowledgement, median", "µs", False),
        Figure("p99", "time to acknowledgement, 99th percentile", "µs", False),
        Figure("memory", "memory (PSS)", "MB", False),
    ]
    return Step("connections", title, figures, measure, str(count))
