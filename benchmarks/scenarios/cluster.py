"""Three brokers, three replicas, two of them in sync at least: transfer, cost, start, a leader's death."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from benchmarks.clients.failover import CAREFUL
from benchmarks.clients.jobs import KillLeader, Produce
from benchmarks.clusters import BROKERS, Cluster
from benchmarks.meters import pss_bytes
from benchmarks.scenarios.step import MILLION, Figure, Step, throughput, throughput_figures
from benchmarks.session import BenchmarkFailed, Session
from benchmarks.sizes import Sizes
from benchmarks.statistics import Target, at_least, at_most

RATE_TARGET = at_least(1.2)
CPU_TARGET = at_most(0.5)
MEMORY_TARGET = at_most(0.15)
START_TARGET = at_most(0.15)
GAP_TARGET = at_most(0.05)

RECORDS_PER_S = 200

# Kafka's default is 9,000 ms, with a heartbeat every 2,000. Any number is accepted; a second, five
# heartbeats long, leaves some room for the pauses of a busy machine.
QUICK_TO_FENCE = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"}

STATED_SETTINGS: dict[str, str | int] = {
    "replication factor": BROKERS,
    "min.insync.replicas": BROKERS - 1,
    "acks": "all, idempotent",
    "broker.session.timeout.ms": "9,000 at Kafka by default",
    **{f"{key} around a kill": value for key, value in CAREFUL.items()},
}

_SMALL_REQUESTS: dict[str, str | int] = {"batch.size": 1_200, "linger.ms": 0}
_RECORDS_PER_REQUEST = 10


def cluster_start() -> Step:
    """Must come first. Kafka's formatting of its disks is not counted."""
    figure = Figure(
        "start", "process start to first record acknowledged by three brokers", "s", False, START_TARGET
    )
    return Step(
        "cluster-start",
        "start of three brokers",
        [figure],
        lambda session: {"start": session.start_and_time_first_ack()},
    )


def cluster_warm_up(sizes: Sizes) -> Step:
    """Lets the JIT compiler of the other side see what is measured after it; ours gets the same."""

    def measure(session: Session) -> dict[str, float]:
        partitions = max(sizes.cluster_partitions)
        for name, records, record_bytes, properties in (
            ("requests", sizes.warm_up_requests // 2 * _RECORDS_PER_REQUEST, 100, _SMALL_REQUESTS),
            ("100", sizes.warm_up, 100, {}),
            ("1000", sizes.warm_up // 3, 1_000, {}),
        ):
            _produce(session, f"warm-up-{name}", records, record_bytes, partitions, properties)
        return {}

    return Step("cluster-warm-up", "warm-up", (), measure)


def _produce(
    session: Session,
    topic: str,
    records: int,
    record_bytes: int,
    partitions: int,
    properties: Mapping[str, str | int] | None = None,
) -> dict[str, float]:
    created = session.create_topic(topic, partitions)
    return session.run(
        Produce(
            session.bootstrap,
            session.broker_pids,
            created,
            records,
            record_bytes,
            partitions=partitions,
            run_length=1_000,
            primed=partitions,
            properties=properties or {},
        )
    )


def cluster_produce_steps(sizes: Sizes) -> list[Step]:
    """Small and large records, to one leader and to all of them."""
    loads = ((sizes.cluster_100, 100), (sizes.cluster_1000, 1_000))
    return [
        _produce_step(records, record_bytes, partitions)
        for records, record_bytes in loads
        for partitions in sizes.cluster_partitions
    ]


def _produce_step(records: int, record_bytes: int, partitions: int) -> Step:
    def measure(session: Session) -> dict[str, float]:
        answer = _produce(session, f"of-{record_bytes}-over-{partitions}", records, record_bytes, partitions)
        return throughput(answer, records)

    title = f"produce {records:,} × {record_bytes:,} B over {partitions} partition{'s' * (partitions > 1)}"
    return Step(
        "cluster-produce",
        title,
        throughput_figures(RATE_TARGET, CPU_TARGET),
        measure,
        f"{record_bytes}/{partitions}",
    )


def cluster_memory() -> Step:
    """Of all processes, after all that the session did."""

    def measure(session: Session) -> dict[str, float]:
        return {"loaded": pss_bytes(session.broker_pids) / MILLION}

    figure = Figure("loaded", "of all processes, after load", "MB", False, MEMORY_TARGET)
    return Step("cluster-memory", "memory (PSS)", [figure], measure)


def failover_step(sizes: Sizes, variant: str, title: str, target: Target | None) -> Step:
    """The leader of a topic is killed, comes back, and the leader of another topic is killed."""

    def measure(session: Session) -> dict[str, float]:
        kills = [_kill_leader(session, f"failover-{number}", sizes) for number in range(sizes.kills)]
        return {
            "gap": median(kill["gap_s"] for kill in kills),
            "worst": max(kill["gap_s"] for kill in kills),
            "elected": median(kill["elected_s"] for kill in kills),
            "client": median(kill["client_s"] for kill in kills),
        }

    figures = [
        Figure("gap", f"gap in writes, median of {sizes.kills} kills", "s", False, target),
        Figure("worst", "gap in writes, longest", "s", False),
        Figure("elected", "until there is a new leader, median", "s", False),
        Figure("client", "the client's own share, median", "s", False),
    ]
    return Step("failover", title, figures, measure, variant)


def _kill_leader(session: Session, topic: str, sizes: Sizes) -> dict[str, float]:
    cluster = session.broker
    if not isinstance(cluster, Cluster):
        raise BenchmarkFailed("only a broker of a cluster can be killed")
    session.create_topic(topic)
    leader = session.leader_of(topic)
    job = KillLeader(
        session.bootstrap,
        topic,
        leader.id,
        cluster.pid_at(leader.port),
        RECORDS_PER_S,
        sizes.before_kill_s,
        sizes.after_kill_s,
    )
    answer = session.run(job)
    cluster.revive()
    session.wait_until_in_sync(topic)
    return answer
