"""What a run has exercised, in numbers: rules of the core, answers to clients, and pairs of fault and role.

Not lines of code: a rule counts when it was seen at work, in the journal, in an answer or in a log. What is
expected and never came is a blind spot of the profile, and is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gapless.simulator.arguments import BROKER_NAMES, names_of
from gapless.simulator.profiles import Profile

ROLES = ("leader", "follower", "controller", "coordinator", "bystander")
"""What a broker may be when a fault hits it, several at once: of the case's own partitions, and of
transactions or groups. A bystander is nothing of all this."""
MOST_REPLICAS = 3

CLUSTER_RULES = (
    "leader: in sync",
    "leader: eligible",
    "leader: the last one",
    "leader: nobody",
    "leader: the same in a new epoch",
    "in sync: fewer",
    "in sync: more",
    "in sync: below the floor",
    "in sync: eligible replicas kept",
    "broker: fenced",
    "broker: registers anew",
    "controller: fails over",
    "log: cut where it differs from the leader's",
    "log: differs, and the leader says where",
)
GROUP_RULES = (
    "HEARTBEAT REBALANCE_IN_PROGRESS",
    "OFFSET_COMMIT UNKNOWN_MEMBER_ID",
    "OFFSET_COMMIT ILLEGAL_GENERATION",
    "OFFSET_COMMIT STALE_MEMBER_EPOCH",
    "OFFSET_COMMIT NOT_COORDINATOR",
    "CONSUMER_GROUP_HEARTBEAT UNKNOWN_MEMBER_ID",
    "CONSUMER_GROUP_HEARTBEAT FENCED_MEMBER_EPOCH",
)
STATIC_RULES = ("group: a static member keeps its place", "CONSUMER_GROUP_HEARTBEAT UNRELEASED_INSTANCE_ID")
RELAY_RULES = ("TXN_OFFSET_COMMIT UNKNOWN_MEMBER_ID", "TXN_OFFSET_COMMIT ILLEGAL_GENERATION")
RULES_OF_FAULTS = {
    "reassign": ("reassignment: begins", "reassignment: ends"),
    "change-floor": ("setting: changed",),
    "delete-records": ("log: records deleted",),
    "disk-error": ("PRODUCE KAFKA_STORAGE_ERROR",),
    "late-request": ("PRODUCE OUT_OF_ORDER_SEQUENCE_NUMBER",),
    "change-retention": ("log: records expired",),
    "add-partition": ("partition: added",),
}
"""What only these faults bring about."""
PRODUCER_RULES = (
    "producer: duplicate recognised",
    "PRODUCE NOT_LEADER_OR_FOLLOWER",
    "PRODUCE NOT_ENOUGH_REPLICAS",
    "PRODUCE NOT_ENOUGH_REPLICAS_AFTER_APPEND",
)
FETCH_RULES = (
    "FETCH by a follower: FENCED_LEADER_EPOCH",
    "FETCH by a follower: UNKNOWN_LEADER_EPOCH",
    "FETCH by a follower: NOT_LEADER_OR_FOLLOWER",
    "FETCH by a consumer: FENCED_LEADER_EPOCH",
    "FETCH by a consumer: UNKNOWN_LEADER_EPOCH",
    "FETCH by a consumer: NOT_LEADER_OR_FOLLOWER",
)
TRANSACTION_RULES = (
    "transaction: committed",
    "transaction: aborted as asked",
    "transaction: aborted by its timeout",
    "INIT_PRODUCER_ID CONCURRENT_TRANSACTIONS",
    "INIT_PRODUCER_ID PRODUCER_FENCED",
    "END_TXN INVALID_PRODUCER_EPOCH",
    "END_TXN PRODUCER_FENCED",
    "PRODUCE INVALID_PRODUCER_EPOCH",
    "FIND_COORDINATOR COORDINATOR_NOT_AVAILABLE",
)


@dataclass(slots=True)
class Coverage:
    """Counts, to be added up over runs."""

    seen: Counter[str] = field(default_factory=Counter)
    """Rules at work; and errors that were answered, as `API ERROR`."""
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Faults that came to pass, with each role of the brokers that they hit."""

    def add(self, other: Coverage) -> None:
        """Take another's counts."""
        self.seen.update(other.seen)
        self.hits.update(other.hits)


@dataclass(frozen=True, slots=True)
class Expected:
    """What runs of a kind can exercise."""

    rules: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, profile: Profile) -> Expected:
        """What runs of a profile can exercise."""
        faults = [name for name, rate in profile.rates.items() if rate]
        if not faults:
            return cls((), ())
        rules = [*CLUSTER_RULES, *PRODUCER_RULES, *FETCH_RULES]
        rules += TRANSACTION_RULES if profile.transactional or any(profile.relays) else ()
        rules += GROUP_RULES if any(profile.members) else ()
        rules += RELAY_RULES if any(profile.relays) else ()
        rules += ("leader: unclean",) if profile.unclean else ()
        rules += ("log: compacted",) if profile.compacting else ()
        rules += STATIC_RULES if profile.static and any(profile.members) else ()
        rules += [rule for fault in faults for rule in RULES_OF_FAULTS.get(fault, ())]
        on_brokers = [name for name in faults if BROKER_NAMES.intersection(names_of(name))]
        roles = (
            ROLES if max(profile.brokers) > MOST_REPLICAS else ROLES[:-1]
        )  # all have a replica of something
        pairs = tuple((name, role) for name in on_brokers for role in roles)
        return cls(tuple(rules), pairs, tuple(faults))

    def blind_spots(self, coverage: Coverage) -> tuple[list[str], list[tuple[str, str]]]:
        """Rules and pairs that never came."""
        rules = [rule for rule in self.rules if not coverage.seen[rule]]
        return rules, [pair for pair in self.pairs if not coverage.hits[pair]]

    def never_came(self, came: Counter[str]) -> list[str]:
        """Faults that have not come to pass, on a broker or otherwise."""
        return [fault for fault in self.faults if not came[fault]]

    def as_json(self, coverage: Coverage) -> dict[str, Any]:
        """Counts and blind spots."""
        rules, pairs = self.blind_spots(coverage)
        by_fault: dict[str, dict[str, int]] = {}
        for (fault, role), count in sorted(coverage.hits.items()):
            by_fault.setdefault(fault, {})[role] = count
        return {
            "rules": {"expected": len(self.rules), "seen": len(self.rules) - len(rules), "never": rules},
            "pairs": {
                "expected": len(self.pairs),
                "seen": len(self.pairs) - len(pairs),
                "never": [f"{fault} of a {role}" for fault, role in pairs],
            },
            "counts": dict(sorted(coverage.seen.items())),
            "faults": by_fault,
        }
