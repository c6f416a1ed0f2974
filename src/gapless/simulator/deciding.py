"""What coordinators decide of transactions, and by whose request: lines for a story.

A request is *late* if whoever sent it has given up its connection: it was sent again long ago. An end that is
late may meet another transaction than its own, so both are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gapless.core.contract import Effect, Event, Request, Tick
from gapless.core.coordinators import INTERNAL_TOPICS, TRANSACTION_STATE
from gapless.core.marker_reader import MarkerReader
from gapless.core.partition import Partition
from gapless.core.transactions.state import TransactionsState
from gapless.core.transactions.transaction import PREPARED, State, Transaction
from gapless.simulator.history import Attempt, Place
from gapless.simulator.scene import Scene
from gapless.simulator.world import Host
from gapless.wire.apis import ApiKey
from gapless.wire.batch import parse_header
from gapless.wire.records import iterate_records

Note = Callable[[str, str, list[Place], list[int]], None]
"""Takes who, what, where, and of which records."""
LATE_ONES = {
    ApiKey.INIT_PRODUCER_ID: "request for an epoch",
    ApiKey.ADD_PARTITIONS_TO_TXN: "request to add a partition",
    ApiKey.ADD_OFFSETS_TO_TXN: "request to add offsets",
    ApiKey.TXN_OFFSET_COMMIT: "offsets of a transaction",
}
"""Requests that change a transaction, and bear no record."""


class Decisions:
    """Sees requests arrive at brokers, and what becomes of transactions."""

    def __init__(self, scene: Scene, note: Note) -> None:
        self._scene = scene
        self._history = scene.history
        self._note = note
        self._causes: dict[int, Event] = {}
        """What has happened last to each broker."""
        self._known: dict[tuple[str, State, int, int], None] = {}
        self._ended: dict[int, Attempt] = {}
        """By producer id, the transaction that was decided last."""
        self._ends: dict[tuple[int, Place], int] = {}

    # --------------------------------------------------------------------------------------- requests

    def happened(self, node_id: int, what: Event | Effect) -> None:
        """An event of a broker, or what it asks for."""
        if isinstance(what, Effect):
            return
        self._causes[node_id] = what
        if isinstance(what, Request) and self._is_late(what):
            self._arrived_late(f"broker {node_id}", what)

    def _is_late(self, request: Request) -> bool:
        return self._scene.world.network.channel(request.connection) is None

    def _arrived_late(self, who: str, request: Request) -> None:
        client = request.header.client_id
        key = ApiKey(request.header.api_key)
        if key is ApiKey.END_TXN:
            meant = self._meant_by(request)
            if meant is not None:
                self._tell(who, f"gets the late end of {_named(meant)}", meant)
        elif key is ApiKey.PRODUCE:
            for place, values in _written_by(request):
                listed = ", ".join(map(str, values))
                text = f"gets late records {listed} of {client} for {place[0]}-{place[1]}"
                self._note(who, text, [place], values)
        elif key in LATE_ONES:
            self._note(who, f"gets a late {LATE_ONES[key]} of {client}", [], [])

    def _meant_by(self, request: Request) -> Attempt | None:
        """The transaction that somebody wanted to end."""
        return next((each for each in self._history.attempts if each.end_request is request.body), None)

    # -------------------------------------------------------------------------------------- decisions

    def changed(self, host: Host, place: Place, replica: Partition) -> None:
        """A replica has something new."""
        if place[0] == TRANSACTION_STATE:
            for shard in host.node.shards.values():
                if isinstance(shard.state, TransactionsState):
                    for transaction in shard.state.transactions.values():
                        self._look(host.node_id, transaction)
        elif place[0] not in INTERNAL_TOPICS:
            self._look_for_markers(host.node_id, place, replica)

    def _look(self, node_id: int, now: Transaction) -> None:
        key = (now.transactional_id, now.state, now.producer_epoch, now.last_update_ms)
        if now.state not in PREPARED or key in self._known:
            return
        self._known[key] = None
        attempt = self._attempt_of(now.transactional_id)
        if attempt is None:
            return
        self._ended[now.producer_id] = attempt
        verb = "commits" if now.state is State.PREPARE_COMMIT else "aborts"
        why, meant = self._why(node_id, attempt)
        self._tell(f"broker {node_id}", f"{verb} {_named(attempt)}{why}", attempt, meant)

    def _attempt_of(self, transactional_id: str) -> Attempt | None:
        attempts = reversed(self._history.attempts)
        return next((each for each in attempts if each.transactional_id == transactional_id), None)

    def _why(self, node_id: int, attempt: Attempt) -> tuple[str, Attempt]:
        """By whose request, and of which transaction that was."""
        cause = self._causes.get(node_id)
        if isinstance(cause, Tick):
            return ", which was open for too long", attempt
        if not isinstance(cause, Request):
            return "", attempt
        client = cause.header.client_id
        if cause.header.api_key == ApiKey.INIT_PRODUCER_ID:
            return f", because {client} starts", attempt
        meant = self._meant_by(cause) or attempt
        if not self._is_late(cause) and meant is attempt:
            return ", as asked", attempt
        late = "late " if self._is_late(cause) else ""
        other = "" if meant is attempt else f" for transaction {meant.number}"
        return f", by the {late}request of {client}{other}", meant

    def _look_for_markers(self, node_id: int, place: Place, replica: Partition) -> None:
        log, key = replica.log, (node_id, place)
        before = self._ends.get(key, 0)
        self._ends[key] = log.end_offset
        if not replica.is_leader or not before < log.end_offset:
            return
        for batch in log.batches_from(max(before, log.start_offset)):
            attempt = self._ended.get(batch.producer_id) if batch.is_control else None
            marker = MarkerReader(log).read(batch) if attempt is not None else None
            if attempt is not None and marker is not None:
                end = "commit" if marker.committed else "abort"
                text = (
                    f"stores the {end} of {_named(attempt)} in {place[0]}-{place[1]} at {batch.base_offset}"
                )
                self._note(f"broker {node_id}", text, [place], list(attempt.values))

    def _tell(self, who: str, text: str, *attempts: Attempt) -> None:
        values = list(dict.fromkeys(value for attempt in attempts for value in attempt.values))
        places = list(dict.fromkeys(self._history.writes[value].place for value in values))
        self._note(who, text, places, values)


def _named(attempt: Attempt) -> str:
    return f"transaction {attempt.number} of {attempt.producer}"


def _written_by(request: Request) -> Iterator[tuple[Place, list[int]]]:
    for topic in request.body.topics:
        for partition in topic.partitions:
            data = partition.payload or memoryview(b"")
            records = iterate_records(data, parse_header(data, 0))
            yield (topic.name, partition.partition), [int(record.value or b"-1") for record in records]
