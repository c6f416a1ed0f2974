"""Producing and consuming with librdkafka: in bulk, in small batches, and one record at a time."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.clients.jobs import Connections, Consume, OneAtATime, Produce
from benchmarks.scenarios.step import Figure, Step, throughput, throughput_figures
from benchmarks.session import CONSUMED_TOPIC, Session
from benchmarks.sizes import Sizes
from benchmarks.statistics import Target, at_least, at_most

CPU_TARGET = at_most(0.4)
SMALL_BATCHES: dict[str, str | int] = {"batch.size": 16_384, "linger.ms": 0}
WARM_UP_CONNECTIONS = 10


def warm_up(sizes: Sizes) -> Step:
    """Lets the JIT compiler of the other side see all that is measured after it; ours gets the same.

    Kafka's CPU time per request falls to a tenth within its first 20,000 requests or so, and then stays.
    """

    def measure(session: Session) -> dict[str, float]:
        bootstrap, pids = session.bootstrap, session.broker_pids
        topic = session.create_topic("warm-up-requests")
        session.run(Connections(bootstrap, pids, topic, WARM_UP_CONNECTIONS, sizes.warm_up_requests, 10, 100))
        for topic, properties in (("warm-up-small-batches", SMALL_BATCHES), ("warm-up-bulk", {})):
            session.create_topic(topic)
            session.run(Produce(bootstrap, pids, topic, sizes.warm_up, 100, properties=properties))
            session.run(Consume(bootstrap, pids, topic, sizes.warm_up))
        return {}

    return Step("warm-up", "warm-up", (), measure)


def transfer_steps(sizes: Sizes) -> list[Step]:
    """In this order: the consumer reads what the first producer wrote."""
    return [
        _produce("produce-100", "", sizes.produce_100, 100, at_least(1.0), {}, CONSUMED_TOPIC),
        _consume(sizes.produce_100),
        _produce("produce-1000", "", sizes.produce_1000, 1_000, at_least(1.2), {}),
        _produce(
            "produce-16k", "16 KB batches, linger 0", sizes.produce_16k, 100, at_least(1.2), SMALL_BATCHES
        ),
        _one_at_a_time(sizes.one_at_a_time),
    ]


def _produce(
    name: str,
    how: str,
    records: int,
    record_bytes: int,
    target: Target,
    properties: Mapping[str, str | int],
    topic: str = "",
) -> Step:
    def measure(session: Session) -> dict[str, float]:
        created = session.create_topic(topic or name)
        job = Produce(
            session.bootstrap, session.broker_pids, created, records, record_bytes, properties=properties
        )
        return throughput(session.run(job), records)

    title = f"produce {records:,} × {record_bytes:,} B" + (f", {how}" if how else "")
    return Step(name, title, throughput_figures(target, CPU_TARGET), measure)


def _consume(records: int) -> Step:
    def measure(session: Session) -> dict[str, float]:
        topic = session.consumed_topic()
        answer = session.run(Consume(session.bootstrap, session.broker_pids, topic, records))
        return throughput(answer, records)

    return Step(
        "consume", f"consume {records:,} × 100 B", throughput_figures(at_least(1.0), CPU_TARGET), measure
    )


def _one_at_a_time(records: int) -> Step:
    def measure(session: Session) -> dict[str, float]:
        topic = session.create_topic("one-at-a-time")
        unmeasured = min(records, 500)
        job = OneAtATime(session.bootstrap, session.broker_pids, topic, records, 100, unmeasured)
        answer = session.run(job)
        return {"p50": answer["p50_us"], "p99": answer["p99_us"]}

    figures = [
        Figure("p50", "time to acknowledgement, median", "µs", False, at_most(1.0)),
        Figure("p99", "time to acknowledgement, 99th percentile", "µs", False),
    ]
    return Step("one-at-a-time", f"one record at a time, {records:,} × 100 B", figures, measure)
