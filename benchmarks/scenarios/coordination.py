"""Transactions and groups with librdkafka: what the coordinators of a broker do beside moving records."""

from __future__ import annotations

from benchmarks.clients.jobs import Commits, Connections, Produce, Rebalance, Transactions, Transform
from benchmarks.scenarios.step import MILLION, Figure, Step, throughput, throughput_figures
from benchmarks.scenarios.transfer import WARM_UP_CONNECTIONS
from benchmarks.session import Session
from benchmarks.sizes import Sizes
from benchmarks.statistics import at_least, at_most

RATE_TARGET = at_least(1.2)
CPU_TARGET = at_most(0.5)
RECORD_BYTES = 100
PARTITIONS_PER_MEMBER = 2

# Defaults of librdkafka, and the one setting of the brokers on which the time of a rebalance hangs.
STATED_SETTINGS: dict[str, str | int] = {
    "session.timeout.ms": 45_000,
    "group.protocol": "classic",
    "partition.assignment.strategy": "range,roundrobin",
    "group.initial.rebalance.delay.ms": "0 at both brokers",
}


def coordination_warm_up(sizes: Sizes) -> Step:
    """All that is measured, for the JIT compiler of the other side (see `warm_up`); ours gets the same.

    The first use of a group or a transaction also makes the topics that keep them.
    """

    def measure(session: Session) -> dict[str, float]:
        bootstrap, pids, requests = session.bootstrap, session.broker_pids, sizes.warm_up_requests // 2
        topic = session.create_topic("warm-up-requests")
        session.run(Connections(bootstrap, pids, topic, WARM_UP_CONNECTIONS, requests, 10, RECORD_BYTES))
        for records_each, transactions in sizes.transactions:
            _transactions(session, f"warm-up-{records_each}", transactions, records_each)
        _transform(session, "warm-up", sizes.transform // 2, sizes.transform_each)
        _commits(session, "warm-up", sizes.commits, pipelined=False)
        _commits(session, "warm-up", 2 * sizes.commits, pipelined=True)
        return {}

    return Step("coordination-warm-up", "warm-up", (), measure)


def transaction_steps(sizes: Sizes) -> list[Step]:
    """One producer, one transaction after the other: small ones, where the protocol weighs, and large."""
    return [_transaction_step(records_each, count) for records_each, count in sizes.transactions]


def _transactions(session: Session, topic: str, transactions: int, records_each: int) -> dict[str, float]:
    created = session.create_topic(f"transactions-{topic}")
    return session.run(
        Transactions(
            session.bootstrap, session.broker_pids, created, transactions, records_each, RECORD_BYTES
        )
    )


def _transaction_step(records_each: int, transactions: int) -> Step:
    def measure(session: Session) -> dict[str, float]:
        answer = _transactions(session, str(records_each), transactions, records_each)
        return {**throughput(answer, transactions * records_each), "p50": answer["p50_us"] / 1000}

    title = f"{transactions:,} transactions of {records_each:,} × {RECORD_BYTES} B"
    figures = [
        *throughput_figures(RATE_TARGET, CPU_TARGET),
        Figure("p50", "one transaction, median", "ms", False),
    ]
    return Step("transactions", title, figures, measure, str(records_each))


def _transform(session: Session, name: str, records: int, records_each: int) -> dict[str, float]:
    bootstrap, pids = session.bootstrap, session.broker_pids
    source, target = session.create_topic(f"{name}-source"), session.create_topic(f"{name}-target")
    session.run(Produce(bootstrap, pids, source, records, RECORD_BYTES))
    return session.run(Transform(bootstrap, pids, source, target, records, records_each))


def transform_step(sizes: Sizes) -> Step:
    """Read committed, produce, and commit the offsets in the same transaction."""

    def measure(session: Session) -> dict[str, float]:
        answer = _transform(session, "transform", sizes.transform, sizes.transform_each)
        return throughput(answer, sizes.transform)

    transactions = -(-sizes.transform // sizes.transform_each)
    title = f"consume-transform-produce, {transactions:,} × {sizes.transform_each:,} records"
    return Step("transform", title, throughput_figures(None, CPU_TARGET), measure)


def _commits(session: Session, name: str, commits: int, *, pipelined: bool) -> dict[str, float]:
    topic = session.create_topic(f"commits-{name}-{'pipelined' if pipelined else 'one-by-one'}")
    unmeasured = min(commits, 500)
    return session.run(Commits(session.bootstrap, session.broker_pids, topic, commits, unmeasured, pipelined))


def commit_steps(sizes: Sizes) -> list[Step]:
    """By one member of a group: each after the one before, then all under way at once."""
    return [
        _commit_step(sizes.commits, pipelined=False),
        _commit_step(sizes.commits, pipelined=True),
    ]


def _commit_step(commits: int, *, pipelined: bool) -> Step:
    def measure(session: Session) -> dict[str, float]:
        answer = _commits(session, "measured", commits, pipelined=pipelined)
        values = {
            "rate": commits / answer["wall_s"],
            "broker_cpu": answer["broker_cpu_s"] / commits * MILLION,
        }
        return values if pipelined else {**values, "p50": answer["p50_us"]}

    how = "all under way at once" if pipelined else "one after the other"
    figures = [
        Figure("rate", "offset commits", "commits/s", True),
        Figure("broker_cpu", "broker CPU per million commits", "s", False),
    ]
    if not pipelined:
        figures.append(Figure("p50", "time to acknowledgement, median", "µs", False))
    variant = "pipelined" if pipelined else "one-by-one"
    return Step("offset-commits", f"{commits:,} offset commits, {how}", figures, measure, variant)


def rebalance_steps(sizes: Sizes) -> list[Step]:
    """With the default heartbeat, by which members learn of a rebalance late, and with a quick one.

    The first is what users wait for, most of it the client's; the second shows what the broker adds.
    """
    return [
        _rebalance_step(sizes.rebalance_members, heartbeat_ms, cycles)
        for heartbeat_ms, cycles in sizes.rebalances
    ]


def _rebalance_step(members: int, heartbeat_ms: int, cycles: int) -> Step:
    partitions = members * PARTITIONS_PER_MEMBER

    def measure(session: Session) -> dict[str, float]:
        topic = session.create_topic(f"rebalance-{heartbeat_ms}", partitions)
        answer = session.run(
            Rebalance(
                session.bootstrap, session.broker_pids, topic, partitions, members, heartbeat_ms, cycles
            )
        )
        return {"joined": answer["joined_s"], "left": answer["left_s"]}

    title = f"rebalance of {members} members, {partitions} partitions, heartbeat {heartbeat_ms:,} ms"
    figures = [
        Figure("joined", "last member joins until all consume", "s", False),
        Figure("left", "last member leaves until all is consumed", "s", False),
    ]
    return Step("rebalance", title, figures, measure, str(heartbeat_ms))
