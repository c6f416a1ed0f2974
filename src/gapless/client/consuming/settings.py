"""What a consumer is told, checked: one word of semantics, and every setting of its own.

    at-most-once    the offset is committed, then the record is processed; handlers are not retried
    at-least-once   the record is processed, then the offset is committed
    exactly-once    the same, read_committed, with a store whose transaction has effects, marks and offset

librdkafka's own automatic commits are never on: they commit what was fetched, not what is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from threading import TIMEOUT_MAX
from typing import Any

from gapless.client.consuming.failures import DeadLetters
from gapless.client.logs import librdkafka_logger
from gapless.client.semantics import Semantics
from gapless.client.stores.none import NoStore
from gapless.client.stores.port import Store
from gapless.errors import UsageError

PROCESS_THEN_COMMIT = "process-then-commit"
COMMIT_THEN_PROCESS = "commit-then-process"
_ORDER_OF = {
    Semantics.AT_MOST_ONCE: COMMIT_THEN_PROCESS,
    Semantics.AT_LEAST_ONCE: PROCESS_THEN_COMMIT,
    Semantics.EXACTLY_ONCE: PROCESS_THEN_COMMIT,
}
_SHARED_WITH_PRODUCERS = ("security.", "sasl.", "ssl.", "socket.", "broker.", "client.", "enable.ssl.")
_MAX_POLL_MS = 300_000
_NO_GROUP = "gapless.no-group"
"""librdkafka wants a name even where nothing is ever committed under it."""

OUR_PROPERTIES = {
    "bootstrap.servers": "the first argument",
    "group.id": "group=",
    "on_commit": "nothing: commits are the consumer's own affair",
    "error_cb": "nothing: errors are raised",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """All that is chosen, consistent in itself."""

    bootstrap: str
    group: str | None
    topics: Sequence[str]
    semantics: Semantics
    store: Store
    commit_first: bool
    workers: int
    by_key: bool
    retries: int
    backoff_ms: float
    on_failure: DeadLetters | None
    batch_records: int
    batch_ms: float
    queue_records: int
    queue_bytes: int
    commit_every_ms: float
    connect_timeout_s: float
    store_timeout_s: float
    close_timeout_s: float
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def incremental(self) -> bool:
        """Whether the group's protocol hands partitions over one by one, not all at once."""
        strategy = str(self.properties.get("partition.assignment.strategy", ""))
        return self.properties.get("group.protocol") == "consumer" or "cooperative" in strategy

    @property
    def max_poll_s(self) -> float:
        return float(self.properties.get("max.poll.interval.ms", _MAX_POLL_MS)) / 1000

    @property
    def from_latest(self) -> bool:
        return self.properties["auto.offset.reset"] in ("latest", "largest", "end")

    def producer_properties(self) -> dict[str, Any]:
        """For a producer on the same cluster."""
        shared = {
            name: value for name, value in self.properties.items() if name.startswith(_SHARED_WITH_PRODUCERS)
        }
        return {
            "bootstrap.servers": self.bootstrap,
            "logger": librdkafka_logger,
            **shared,
        }


def settle(
    bootstrap: str,
    *,
    group: str | None,
    topics: Sequence[str] | str,
    semantics: str | None,
    store: Store | None,
    order: str | None,
    workers: int,
    parallel_by: str,
    retries: int | None,
    backoff_ms: float,
    on_failure: DeadLetters | str,
    batch_records: int,
    batch_ms: float,
    queue_records: int,
    queue_bytes: int,
    commit_every_ms: float,
    connect_timeout_s: float,
    store_timeout_s: float,
    close_timeout_s: float,
    properties: Mapping[str, Any] | None,
) -> Settings:
    """The settings, or UsageError with the reason why they cannot be."""
    word, order = _word_and_order(semantics, order)
    commit_first = order == COMMIT_THEN_PROCESS
    topics = _names(topics)
    _check_group(group, topics, store, commit_first)
    _check_store(word, store)
    for name, number in {
        "workers": workers,
        "batch_records": batch_records,
        "queue_records": queue_records,
        "queue_bytes": queue_bytes,
    }.items():
        check_number(name, number, least=1, whole=True)
    for name, time in {
        "backoff_ms": backoff_ms,
        "batch_ms": batch_ms,
        "commit_every_ms": commit_every_ms,
        "connect_timeout_s": connect_timeout_s,
        "store_timeout_s": store_timeout_s,
        "close_timeout_s": close_timeout_s,
    }.items():
        check_number(name, time)
    by_key = _check_parallel(parallel_by, commit_first, store)
    return Settings(
        bootstrap=_address(bootstrap),
        group=group,
        topics=topics,
        semantics=word,
        store=store or NoStore(),
        commit_first=commit_first,
        workers=workers,
        by_key=by_key,
        retries=_check_retries(word, retries),
        backoff_ms=backoff_ms,
        on_failure=_check_on_failure(on_failure),
        batch_records=batch_records,
        batch_ms=batch_ms,
        queue_records=queue_records,
        queue_bytes=queue_bytes,
        commit_every_ms=commit_every_ms,
        connect_timeout_s=connect_timeout_s,
        store_timeout_s=store_timeout_s,
        close_timeout_s=close_timeout_s,
        properties=_librdkafka(bootstrap, group, word, properties or {}),
    )


def check_number(name: str, given: object, *, least: int = 0, whole: bool = False) -> None:
    """UsageError for what is none, or less than can be, or a time longer than a thread can wait."""
    kind = "a whole number" if whole else "a number"
    if isinstance(given, bool) or not isinstance(given, int if whole else int | float) or not given >= -inf:
        raise UsageError(f"{name}={given!r} cannot be: give {kind}, {least} or more")
    if given < least:
        raise UsageError(f"{name}={given!r} is too small: use {least} or more")
    if not whole and given > TIMEOUT_MAX:
        raise UsageError(f"{name}={given!r} is too large: use {TIMEOUT_MAX:g} or less")


def _address(bootstrap: object) -> str:
    if not isinstance(bootstrap, str) or not bootstrap.strip():
        raise UsageError("a consumer needs the cluster's addresses, like broker-1:9092,broker-2:9092")
    return bootstrap


def _names(topics: object) -> tuple[str, ...]:
    given = (topics,) if isinstance(topics, str) else topics
    if not isinstance(given, Iterable):
        raise UsageError(f"topics={topics!r} cannot be: give a name, or several")
    return tuple(dict.fromkeys(map(_name, given)))


def _name(topic: object) -> str:
    if not isinstance(topic, str) or not topic or "\0" in topic:
        raise UsageError(f"{topic!r} cannot name a topic: give text")
    return topic


def _word_and_order(semantics: str | None, order: str | None) -> tuple[Semantics, str]:
    if order not in (None, PROCESS_THEN_COMMIT, COMMIT_THEN_PROCESS):
        raise UsageError(f"order {order!r} is unknown: choose {PROCESS_THEN_COMMIT}, {COMMIT_THEN_PROCESS}")
    if semantics is None:
        first = order == COMMIT_THEN_PROCESS
        word = Semantics.AT_MOST_ONCE if first else Semantics.AT_LEAST_ONCE
    else:
        word = Semantics.named(semantics)
    if order is not None and order != _ORDER_OF[word]:
        why = "a crash in between would repeat a record"
        if order == COMMIT_THEN_PROCESS:
            why = "a crash in between would lose a record"
        raise UsageError(f"{word} cannot be had with order={order!r}: {why}; leave out one of the two")
    return word, _ORDER_OF[word]


def _check_group(group: object, topics: Sequence[str], store: Store | None, commit_first: bool) -> None:
    if group is not None:
        if not isinstance(group, str) or not group or "\0" in group:
            raise UsageError(f"group={group!r} cannot name a group: give text")
        return
    if topics:
        raise UsageError("topics are shared out in a group: name one with group=, or assign() partitions")
    if store is not None or commit_first:
        raise UsageError("a store and commit-then-process remember under the group's name: give group=")


def _check_store(word: Semantics, store: Store | None) -> None:
    if store is not None and (isinstance(store, type) or not hasattr(store, "keeps_offsets")):
        raise UsageError(f"store={store!r} is no store: give one like SqliteStore(path)")
    if word is not Semantics.EXACTLY_ONCE or (store is not None and store.keeps_offsets):
        return
    what = "no store" if store is None else f"{type(store).__name__}"
    raise UsageError(
        f"exactly-once with {what}: a crash between the effect and the mark would repeat or lose it; use a "
        "store whose transaction has both (SqliteStore, PostgresStore), or relay() for topic to topic"
    )


def _check_parallel(parallel_by: str, commit_first: bool, store: Store | None) -> bool:
    if parallel_by not in ("partition", "key"):
        raise UsageError(f"parallel_by={parallel_by!r} is unknown: choose partition or key")
    if parallel_by == "partition":
        return False
    if commit_first:
        raise UsageError(
            "commit-then-process works in parallel by partition only: committing one key's record would "
            "commit those of other keys that still wait"
        )
    if store is not None and type(store) is not NoStore:
        raise UsageError(
            "a store works in parallel by partition only: it remembers how far a partition is done in order"
        )
    return True


def _check_retries(word: Semantics, retries: int | None) -> int:
    if retries is not None:
        check_number("retries", retries, whole=True)
    if word is Semantics.AT_MOST_ONCE:
        if retries:
            raise UsageError(f"at-most-once with retries={retries} would call a handler twice for a record")
        return 0
    return 3 if retries is None else retries


def _check_on_failure(on_failure: DeadLetters | str) -> DeadLetters | None:
    if isinstance(on_failure, DeadLetters):
        _name(on_failure.topic)
        return on_failure
    if on_failure != "stop":
        raise UsageError(f"on_failure={on_failure!r} is unknown: choose 'stop' or DeadLetters(topic)")
    return None


def _librdkafka(
    bootstrap: str, group: str | None, word: Semantics, given: Mapping[str, Any]
) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"properties={given!r} cannot be: give a mapping from name to value")
    for name, instead in OUR_PROPERTIES.items():
        if name in given:
            raise UsageError(f"properties: {name} cannot be given there; use {instead}")
    for name in ("enable.auto.commit", "enable.auto.offset.store"):
        if str(given.get(name, "false")).lower() != "false":
            raise UsageError(
                f"properties: {name} would commit records that are not processed yet; leave it out"
            )
    isolation = str(given.get("isolation.level", "read_committed"))
    if word is Semantics.EXACTLY_ONCE and isolation != "read_committed":
        raise UsageError(f"exactly-once with isolation.level={isolation} would process aborted records")
    max_poll_ms = given.get("max.poll.interval.ms", _MAX_POLL_MS)
    if not str(max_poll_ms).isdecimal():
        raise UsageError(f"properties: max.poll.interval.ms={max_poll_ms!r} cannot be understood")
    return {
        # From the beginning: a group that is new, or whose offsets have expired, must not skip silently.
        "auto.offset.reset": "earliest",
        "logger": librdkafka_logger,
        **given,
        "bootstrap.servers": bootstrap,
        "group.id": group or _NO_GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": isolation,
    }
