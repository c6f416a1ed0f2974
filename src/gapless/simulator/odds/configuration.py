"""A configuration: what a person chooses for a topic and its producers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gapless.errors import UsageError

BROKERS = 3


class Acks(StrEnum):
    """After how many copies a record is acknowledged."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"

    @property
    def code(self) -> int:
        return -1 if self is Acks.ALL else int(self)


class FlushPolicy(StrEnum):
    """When a record is on disk."""

    PAGE_CACHE = "page-cache"
    BEFORE_ACK = "before-ack"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Three brokers, one topic, and producers that are all alike."""

    acks: Acks = Acks.ALL
    replicas: int = 3
    min_insync: int = 1
    flush: FlushPolicy = FlushPolicy.PAGE_CACHE
    idempotent: bool = True
    unclean: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= BROKERS:
            raise UsageError(
                f"{self.replicas} replicas: the simulated cluster has {BROKERS} brokers, so 1 to {BROKERS}"
            )
        if not 1 <= self.min_insync <= self.replicas:
            raise UsageError(
                f"min.insync.replicas {self.min_insync}: must be 1 to {self.replicas}, the number of replicas"
            )
        if self.idempotent and self.acks is not Acks.ALL:
            raise UsageError(f"idempotence needs acks=all, not {self.acks}: turn it off, or ask for all")

    @property
    def topic_configs(self) -> dict[str, str]:
        """The topic's settings, by Kafka's names."""
        return {
            "min.insync.replicas": str(self.min_insync),
            "unclean.leader.election.enable": str(self.unclean).lower(),
            **({"flush.messages": "1"} if self.flush is FlushPolicy.BEFORE_ACK else {}),
        }

    def __str__(self) -> str:
        parts = [f"acks={self.acks}", f"RF {self.replicas}"]
        if self.acks is Acks.ALL and self.replicas > 1:
            parts.append(f"min.insync {self.min_insync}")
        parts.append("flushed" if self.flush is FlushPolicy.BEFORE_ACK else "page cache")
        if self.idempotent:
            parts.append("idempotent")
        if self.unclean:
            parts.append("unclean")
        return ", ".join(parts)


def _usual() -> tuple[Configuration, ...]:
    none, leader = Acks.NONE, Acks.LEADER
    flushed = FlushPolicy.BEFORE_ACK
    return (
        Configuration(none, 1, idempotent=False),
        Configuration(none, 3, idempotent=False),
        Configuration(leader, 1, idempotent=False),
        Configuration(leader, 1, flush=flushed, idempotent=False),
        Configuration(leader, 3, unclean=True, idempotent=False),
        Configuration(leader, 3, idempotent=False),
        Configuration(leader, 3, flush=flushed, idempotent=False),
        Configuration(min_insync=1, idempotent=False, unclean=True),
        Configuration(min_insync=1, idempotent=False),
        Configuration(min_insync=1),
        Configuration(min_insync=2, idempotent=False),
        Configuration(min_insync=2),
        Configuration(min_insync=2, flush=flushed),
    )


USUAL = _usual()
"""Configurations that a person would consider, from the most careless to the most careful."""
