"""How much work each scenario does: the real run, a quick one to see that all works, a tiny one for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts are records unless their name says otherwise."""

    warm_up: int = 300_000
    warm_up_requests: int = 20_000
    produce_100: int = 1_000_000
    produce_1000: int = 500_000
    produce_16k: int = 500_000
    one_at_a_time: int = 5_000
    idle_s: float = 1.0

    partitions: tuple[int, ...] = (1, 100, 1_000)
    partitions_total: int = 500_000

    connections: tuple[int, ...] = (1, 50, 200)
    connections_requests: int = 50_000

    log_mb: tuple[int, ...] = (100, 1_000, 4_000)
    log_operations: int = 5_000

    transactions: tuple[tuple[int, int], ...] = ((100, 1_000), (10_000, 50))
    """Records of one transaction, and how many transactions."""
    transform: int = 100_000
    transform_each: int = 1_000
    """Records of one transaction."""
    commits: int = 3_000
    rebalances: tuple[tuple[int, int], ...] = ((3_000, 1), (100, 5))
    """Milliseconds between a member's heartbeats (librdkafka's default is 3,000), and how often."""
    rebalance_members: int = 10

    cluster_partitions: tuple[int, ...] = (1, 6)
    cluster_100: int = 1_000_000
    cluster_1000: int = 200_000
    kills: int = 5
    before_kill_s: float = 2.0
    after_kill_s: float = 1.0


FULL = Sizes()

QUICK = Sizes(
    warm_up=50_000,
    warm_up_requests=2_000,
    produce_100=100_000,
    produce_1000=50_000,
    produce_16k=50_000,
    one_at_a_time=500,
    idle_s=0.2,
    partitions=(1, 100),
    partitions_total=50_000,
    connections=(1, 50),
    connections_requests=5_000,
    log_mb=(40, 80, 160),
    log_operations=500,
    transactions=((100, 100), (10_000, 5)),
    transform=10_000,
    transform_each=1_000,
    commits=500,
    rebalances=((100, 1),),
    cluster_100=100_000,
    cluster_1000=20_000,
    kills=2,
    before_kill_s=1.0,
    after_kill_s=0.5,
)

TINY = Sizes(
    warm_up=200,
    warm_up_requests=20,
    produce_100=2_000,
    produce_1000=500,
    produce_16k=1_000,
    one_at_a_time=20,
    idle_s=0.0,
    partitions=(1, 3),
    partitions_total=600,
    connections=(1, 4),
    connections_requests=40,
    log_mb=(1, 2),
    log_operations=20,
    transactions=((10, 5), (100, 2)),
    transform=200,
    transform_each=50,
    commits=20,
    rebalances=((100, 1),),
    rebalance_members=3,
    cluster_partitions=(1, 2),
    cluster_100=2_000,
    cluster_1000=500,
    kills=1,
    before_kill_s=0.2,
    after_kill_s=0.1,
)
