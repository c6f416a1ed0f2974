"""Mistakes in who is in sync, and in who may lead."""

from __future__ import annotations

from gapless.core.membership import decisions
from gapless.core.membership.decisions import Arrival
from gapless.core.membership.elections import Policy
from gapless.core.partition import Partition
from gapless.core.records import BrokerRegistered
from gapless.core.replication import insync
from gapless.core.replication.followers import Follower
from gapless.simulator.mutants.mutant import Wrong, mutant


def _from_the_watermark(partition: Partition) -> int:
    return partition.high_watermark


mutant(
    4,
    "join-before-epoch-start",
    "KAFKA-7128",
    """A follower joins the in-sync set once it has all below the leader's high watermark, which in a new
    leader may be behind the true one. It is in sync without all that was committed, and can be elected.""",
    Wrong(insync, "joins_from", _from_the_watermark),
    found_as=("in-sync", "lost-write", "logs-differ"),
    profile="leaders",
    seed=29,
)


def _any_life(follower: Follower, broker: BrokerRegistered) -> bool:
    return True


mutant(
    6,
    "stale-life-rejoins",
    "KIP-903",
    """A leader lets a broker join the in-sync set by what an earlier life of it had fetched. After a
    power cut the broker has less than that, and is in sync, and can be elected, all the same.""",
    Wrong(insync, "is_same_life", _any_life),
    found_as=("in-sync", "lost-write", "logs-differ", "high-watermark"),
    profile="power",
    seed=102,
)


def _always(who: Arrival, policy: Policy) -> bool:
    return True


mutant(
    7,
    "last-replica-standing",
    "KIP-966",
    """A broker that comes back after a power cut is taken for complete. The last one in sync leads again
    without what it had not flushed, and those who still have it follow and cut it off.""",
    Wrong(decisions, "_keeps_committed", _always),
    found_as=("in-sync", "lost-write", "logs-differ", "high-watermark", "nonmonotonic-poll"),
    profile="power",
    seed=19,
)
