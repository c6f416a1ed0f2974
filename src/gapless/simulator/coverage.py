"""What a run has exercised, in numbers: rules of the core, answers to clients, and pairs of fault and role.

Not lines of code: a rule counts when it was seen at work, in the journal, in an answer or in a log. What is
expected and never came is a blind spot of the profile, and is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gapless.simulator.arguments import BROKER_NAMES, names_of

ROLES = ("leader", "follower", "controller", "coordinator", "bystander")
"""What a broker may be when a fault hits it, several at once: of the case's own partitions, and of
transactions or groups. A bystander is nothing of all this."""

CLUSTER_RULES = (
    "leader: in sync",
    "leader: eligible",
    "leader: the last one",
    "leader: unclean",
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
ADMIN_RULES = ("reassignment: begins", "reassignment: ends", "setting: changed", "log: records deleted")
PRODUCER_RULES = (
    "producer: duplicate recognised",
    "PRODUCE NOT_LEADER_OR_FOLLOWER",
    "PRODUCE NOT_ENOUGH_REPLICAS",
    "PRODUCE NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "PRODUCE OUT_OF_ORDER_SEQUENCE_NUMBER",
    "PRODUCE KAFKA_STORAGE_ERROR",
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
ADMIN_FAULTS = frozenset({"reassign", "preferred-election"})


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

    @classmethod
    def of(cls, faults: Iterable[str], *, transactions: bool) -> Expected:
        """What runs with these faults can exercise."""
        faults = list(faults)
        rules = [*CLUSTER_RULES, *PRODUCER_RULES, *FETCH_RULES]
        rules += TRANSACTION_RULES if transactions else ()
        rules += ADMIN_RULES if ADMIN_FAULTS.intersection(faults) else ()
        on_brokers = [name for name in faults if BROKER_NAMES.intersection(names_of(name))]
        return cls(tuple(rules), tuple((name, role) for name in on_brokers for role in ROLES))

    def blind_spots(self, coverage: Coverage) -> tuple[list[str], list[tuple[str, str]]]:
        """Rules and pairs that never came."""
        rules = [rule for rule in self.rules if not coverage.seen[rule]]
        return rules, [pair for pair in self.pairs if not coverage.hits[pair]]

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
