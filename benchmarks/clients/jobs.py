"""What a client process can be told to do. A job travels as JSON; its answer is a flat object of numbers.

Every answer has `wall_s`, `broker_cpu_s` and `client_cpu_s` of the measured stretch, which begins when
connections stand and ends with the last acknowledgement or record, except where a job says what it answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import get_args


@dataclass(frozen=True, slots=True)
class Produce:
    """`records` records over all partitions of a topic, `run_length` to one partition, then the next.

    Before the clock runs, `primed` partitions get a record each, so that their leaders are connected.
    """

    bootstrap: str
    broker_pids: list[int]
    topic: str
    records: int
    record_bytes: int
    partitions: int = 1
    run_length: int = 10_000
    primed: int = 1
    properties: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OneAtATime:
    """One record, its acknowledgement, the next record. Also answers `p50_us` and `p99_us`."""

    bootstrap: str
    broker_pids: list[int]
    topic: str
    records: int
    record_bytes: int
    unmeasured: int


@dataclass(frozen=True, slots=True)
class Consume:
    """All records of partition 0, from the beginning to the end that `records` names."""

    bootstrap: str
    broker_pids: list[int]
    topic: str
    records: int


@dataclass(frozen=True, slots=True)
class Connections:
    """Produce requests from many connections, each with one request under way, on one partition.

    Also answers `p50_us`, `p99_us` and, while all connections stand, `broker_pss_bytes`.
    """

    bootstrap: str
    broker_pids: list[int]
    topic: str
    connections: int
    requests: int
    records_per_request: int
    record_bytes: int


@dataclass(frozen=True, slots=True)
class Transactions:
    """Begin, produce `records_each`, commit: `transactions` times. Also answers `p50_us`, of one of them."""

    bootstrap: str
    broker_pids: list[int]
    topic: str
    transactions: int
    records_each: int
    record_bytes: int


@dataclass(frozen=True, slots=True)
class Transform:
    """Consume, transform, produce, with the consumed offsets in the transaction; one topic to another.

    The source has one record more than `records`: it goes first, unmeasured.
    """

    bootstrap: str
    broker_pids: list[int]
    source: str
    target: str
    records: int
    records_each: int


@dataclass(frozen=True, slots=True)
class Commits:
    """Offset commits of one partition each, by a member of a group.

    Either each waits for the one before (also answers `p50_us`), or all are under way at once.
    """

    bootstrap: str
    broker_pids: list[int]
    topic: str
    commits: int
    unmeasured: int
    pipelined: bool


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A group of members that consume a steady stream: the last one joins and leaves, `cycles` times.

    Also answers `joined_s` and `left_s`: until every partition is consumed again; medians of the cycles.
    """

    bootstrap: str
    broker_pids: list[int]
    topic: str
    partitions: int
    members: int
    heartbeat_ms: int
    cycles: int


@dataclass(frozen=True, slots=True)
class FirstAck:
    """Try to send one record to brokers that are not there yet; answers `acked_at_s` on the monotonic clock.

    Says `waiting` on a line of its own once it tries. With more than one replica it makes the topic first,
    which needs that many brokers, and the record must be at all of them.
    """

    bootstrap: str
    topic: str
    replicas: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class KillLeader:
    """A steady stream of small records to a new topic's partition, whose leader is killed (SIGKILL).

    Answers `gap_s`, the longest time between two acknowledgements; `elected_s`, from the kill until another
    broker names a new leader; `client_s`, from there until writes go on.
    """

    bootstrap: str
    topic: str
    leader_id: int
    leader_pid: int
    records_per_s: int
    before_s: float
    after_s: float


Job = (
    Produce
    | OneAtATime
    | Consume
    | Connections
    | Transactions
    | Transform
    | Commits
    | Rebalance
    | FirstAck
    | KillLeader
)

KINDS: dict[str, type[Job]] = {kind.__name__: kind for kind in get_args(Job)}


def encode(job: Job) -> str:
    """As an argument of `python -m benchmarks.clients`."""
    return json.dumps({"kind": type(job).__name__, **asdict(job)})


def decode(text: str) -> Job:
    """The other way round."""
    fields = json.loads(text)
    return KINDS[fields.pop("kind")](**fields)
