"""A case: everything that happens in one run, as plain data. The same case gives the same run, bit for bit.

A case comes from a seed (`cases.py`); a shrunk one has fewer steps and comes from a file. Each step is
something that a client is asked to do, or a fault.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

RETENTION_MS = "retention.ms"
UNCLEAN = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic that is there from the beginning."""

    name: str
    partitions: int
    replicas: int
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A client that is there from the beginning."""

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """At a time, counted from the start of the run, something is asked for."""

    at_ms: int
    what: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    seed: int
    profile: str
    brokers: int
    topics: tuple[TopicPlan, ...]
    clients: tuple[ClientPlan, ...]
    steps: tuple[Step, ...]
    jitter: bool = True
    """Whether messages take different times; if not, each takes a millisecond."""
    settings: dict[str, str] = field(default_factory=dict)
    internal: dict[str, str] = field(default_factory=dict)
    """Settings of the internal topics, beside those that they always have."""
    harm_only: bool = False
    """Whether only what clients see is judged: a mistake inside the brokers takes its course."""

    def with_steps(self, steps: tuple[Step, ...]) -> Self:
        """The same case with other steps."""
        return replace(self, steps=steps)

    def to_json(self) -> str:
        """The case as text."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """A case of what JSON makes of it."""
        fields = dict(values)
        fields["topics"] = tuple(TopicPlan(**topic) for topic in fields["topics"])
        fields["clients"] = tuple(ClientPlan(**client) for client in fields["clients"])
        fields["steps"] = tuple(
            Step(step["at_ms"], step["what"], _hashable(step["arguments"])) for step in fields["steps"]
        )
        return cls(**fields)


def _hashable(value: Any) -> Any:
    """Lists as tuples, all the way down."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
