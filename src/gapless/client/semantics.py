"""One word for what may happen to a record, and the settings that it stands for.

    at-most-once    never twice; may be lost
    at-least-once   never lost; may come twice
    exactly-once    neither

No single setting makes any of these: they run through producer, topic and consumer together. `MEANS` says
what each word asks of each of them. A setting that is given as well wins where the word leaves a choice, and
is refused, with the reason, where it would make the word untrue.

    >>> MEANS[Semantics.named("exactly-once")].consumer["isolation.level"]
    'read_committed'
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from gapless.errors import UsageError


class Semantics(StrEnum):
    """What may happen to a record."""

    AT_MOST_ONCE = "at-most-once"
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"

    @classmethod
    def named(cls, word: str) -> Semantics:
        try:
            return cls(word)
        except ValueError:
            raise UsageError(f"semantics {word!r} is unknown: choose {', '.join(cls)}") from None


class Meaning(NamedTuple):
    """What a word asks of each part, under Kafka's names where it has one."""

    producer: Mapping[str, str]
    topic: Mapping[str, str]
    consumer: Mapping[str, str]


_SAFE_TOPIC = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}

MEANS: Mapping[Semantics, Meaning] = {
    Semantics.AT_MOST_ONCE: Meaning(
        producer={"acks": "0", "enable.idempotence": "false", "retries": "0"},
        topic={},
        consumer={"enable.auto.commit": "false", "order": "commit-then-process"},
    ),
    Semantics.AT_LEAST_ONCE: Meaning(
        producer={"acks": "all", "enable.idempotence": "true", "retries": "3"},
        topic=_SAFE_TOPIC,
        consumer={"enable.auto.commit": "false", "order": "process-then-commit"},
    ),
    Semantics.EXACTLY_ONCE: Meaning(
        producer={
            "acks": "all",
            "enable.idempotence": "true",
            "spool": "always",
            "transactional.id": "source",
        },
        topic=_SAFE_TOPIC,
        consumer={
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "order": "process-then-commit",
            "store": "transactional",
        },
    ),
}
"""Of a topic: the least that is safe with three replicas. Of a producer: what it is if nothing is given."""
