"""The whole vocabulary between the rules and the world: what can happen to a broker, and what it can ask for.

A `Node` is driven by `step(now_ms, event) -> effects`. It never blocks, awaits or calls back. The shell
carries out effects in their order, keeps replies in request order per connection, and turns the world
(sockets, disks, clocks) into events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gapless.core.records import MetadataRecord
from gapless.wire.request import RequestHeader


class InvariantViolated(Exception):
    """The rules contradict themselves: a bug of ours, never a peer's fault."""


class TopicPartition(NamedTuple):
    """A partition's name."""

    topic: str
    partition: int


class Randomness(Protocol):
    """Where ids come from: seeded in tests and simulations, the system's generator in a broker."""

    def getrandbits(self, k: int, /) -> int: ...


# ---------------------------------------------------------------------------------------------- events


@dataclass(slots=True, eq=False)
class Request:
    """A decoded request. The object itself identifies it: every one gets exactly one `Reply`."""

    connection: int
    header: RequestHeader
    body: Any
    host: str = ""
    """The client's address, as groups tell it of their members."""


@dataclass(slots=True)
class ConnectionClosed:
    """Nobody waits for this connection's replies any more."""

    connection: int


@dataclass(slots=True)
class Started:
    """The journal has been read to its end: register with this address, take up partitions, then serve."""

    host: str
    port: int
    keeps_all: bool = True
    """Whether nothing was lost since this broker last ran: it stopped cleanly, or the machine ran on."""
    keeps_flushed: bool = True
    """Whether at least what was flushed is there: not if the disk is a new one."""


@dataclass(slots=True)
class Flushed:
    """All of a partition's log below `offset` is on stable storage."""

    partition: TopicPartition
    offset: int


@dataclass(slots=True)
class DiskFailed:
    """A partition's log could not be made durable; what is below its high watermark stays readable."""

    partition: TopicPartition
    reason: str


@dataclass(slots=True)
class Committed:
    """Metadata records are in the journal; together they bring the image to `version`.

    `own` tells that they are this node's outstanding proposal.
    """

    version: int
    records: list[MetadataRecord]
    own: bool = False


@dataclass(slots=True)
class Refused:
    """The outstanding proposal did not enter the journal: it had moved on, or could not be written."""

    reason: str
    retry: bool


@dataclass(slots=True)
class PeerAnswered:
    """Another broker's answer to a `Call`; None if none came in time or the connection was lost."""

    call: Call
    message: Any


@dataclass(slots=True)
class BrokerDied:
    """The coordination service knows that a broker's life is over: its process is gone for certain."""

    node_id: int
    epoch: int


@dataclass(slots=True)
class PeerLost:
    """The connection to another broker broke: it may have died this very moment. Certainty follows, if so."""

    node_id: int


@dataclass(slots=True)
class StopAsked:
    """Hand over what is led here, then say `Stop`."""


@dataclass(slots=True)
class CaughtUp:
    """All that was in the journal when `CatchUp` was asked for has come as `Committed`."""


@dataclass(slots=True)
class Tick:
    """Time has passed: a deadline may be due."""


Event = (
    Request
    | ConnectionClosed
    | Started
    | Flushed
    | DiskFailed
    | Committed
    | Refused
    | PeerAnswered
    | BrokerDied
    | PeerLost
    | StopAsked
    | CaughtUp
    | Tick
)

# --------------------------------------------------------------------------------------------- effects


@dataclass(slots=True)
class Reply:
    """Answer a request. `message` is None if the client asked not to be answered (acks=0)."""

    request: Request
    message: Any


@dataclass(slots=True)
class Flush:
    """Make a partition's log durable up to `offset`, then say `Flushed` (one fsync may serve many)."""

    partition: TopicPartition
    offset: int


@dataclass(slots=True)
class Propose:
    """Add records to the journal if it is still at `expected_version`; `Committed` or `Refused` follows."""

    expected_version: int
    records: list[MetadataRecord]


@dataclass(slots=True)
class Close:
    """End a connection whose peer broke the protocol."""

    connection: int
    reason: str


@dataclass(slots=True, eq=False)
class Call:
    """Ask another broker; exactly one `PeerAnswered` with this very object follows."""

    node_id: int
    api_key: int
    api_version: int
    body: Any
    timeout_ms: int


@dataclass(slots=True)
class CatchUp:
    """Read the journal to its end before anything else happens, then say `CaughtUp`."""


@dataclass(slots=True)
class Tell:
    """A line for the operator, once."""

    text: str
    is_problem: bool = False


@dataclass(slots=True)
class Stop:
    """Nothing is led here any more: the process may end."""


Effect = Reply | Flush | Propose | Close | Call | CatchUp | Tell | Stop
