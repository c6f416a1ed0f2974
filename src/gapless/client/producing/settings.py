"""A producer's settings: what the word for its semantics stands for, what was given, and what cannot be both.

`settle` takes what the user gave (None: not given), by argument or by librdkafka property, fills in what the
word stands for, and refuses what would make the word untrue, saying why. What comes out is complete.

How long a record is tried for, before it counts as failed:

- With a spool to fall back on: `retries + 1` attempts of two seconds each and the pauses between them (with
  3 retries and 300 ms: 8.9 s). librdkafka does not count attempts while it has no connection, it only waits;
  so its delivery timeout is set to the time that the attempts would take. Then the record goes to the spool.
- Without one: as Kafka's producers do, two minutes. Nobody else would try again.
- With all records in a spool (`always`): for ever; the spool is where they wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from gapless.client.durations import seconds
from gapless.client.formats import check_source
from gapless.client.semantics import Semantics
from gapless.errors import UsageError

_logger = logging.getLogger("gapless.client")

ATTEMPT_MS = 2_000
DELIVERY_TIMEOUT_MS = 120_000
FOR_EVER_MS = 0  # librdkafka's word for it
_MOST = 2**31 - 1
MANY_RETRIES = _MOST
# When all brokers are gone, librdkafka 2.16 forgets them and begins with the bootstrap servers. Calls of
# a transaction, and records, that are under way may then wait for ever. Those servers are tried anyway.
KNOWN_BROKERS_ONLY = {"metadata.recovery.strategy": "none"}

SpoolMode = Literal["always", "fallback"]
WhenFull = Literal["block", "drop", "spool"] | float

# Our argument, and what librdkafka calls the same thing.
_SAME: dict[str, tuple[str, ...]] = {
    "acks": ("acks", "request.required.acks"),
    "idempotence": ("enable.idempotence",),
    "retries": ("retries", "message.send.max.retries"),
    "backoff_ms": ("retry.backoff.ms",),
    "delivery_timeout_ms": ("delivery.timeout.ms", "message.timeout.ms"),
    "buffer_ms": ("linger.ms", "queue.buffering.max.ms"),
    "buffer_messages": ("queue.buffering.max.messages",),
    "batch_messages": ("batch.num.messages",),
}
_OURS = {
    "transactional.id": "a source's transactional id is its name",
    "bootstrap.servers": "give the addresses as the first argument",
    "metadata.broker.list": "give the addresses as the first argument",
    "on_delivery": "give it to send()",
    "dr_cb": "give on_delivery to send()",
    "dr_msg_cb": "give on_delivery to send()",
    "delivery.report.only.error": "receipts need every report",
    "partitioner": "partitions are chosen as Java's clients do; or give send() a partition",
    "default.topic.config": "give what is in it as properties of their own",
}
_CALLBACKS = frozenset(("error_cb", "stats_cb", "throttle_cb"))
_ENQUEUE_TIMEOUT = "queue.enqueue.timeout.ms"


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a producer needs to know. Made by `settle`."""

    bootstrap: str
    source: str
    semantics: Semantics | None
    acks: str
    idempotence: bool
    retries: int
    backoff_ms: int
    delivery_timeout_ms: int
    attempt_ms: int | None
    """How long the cluster may take to answer one request; None: librdkafka's default."""
    buffer_ms: float
    buffer_messages: int
    batch_messages: int
    when_full: WhenFull
    spool: Path | None
    spool_mode: SpoolMode | None
    spool_max_bytes: int | None
    spool_when_full: Literal["refuse", "block"]
    keep_s: float
    transaction_ms: float
    transaction_records: int
    seal_every_s: float
    """0: no seals."""
    properties: Mapping[str, Any]
    """Further properties of librdkafka, as the user gave them."""

    def connection(self) -> dict[str, Any]:
        """What any client of the cluster needs, and what else the user gave."""
        return {"bootstrap.servers": self.bootstrap, **self.properties}

    def librdkafka(self) -> dict[str, Any]:
        """For a producer of librdkafka that is not transactional."""
        attempt = {} if self.attempt_ms is None else {"request.timeout.ms": self.attempt_ms}
        return {
            **KNOWN_BROKERS_ONLY,
            "bootstrap.servers": self.bootstrap,
            "acks": self.acks,
            "enable.idempotence": self.idempotence,
            "retries": self.retries,
            "retry.backoff.ms": self.backoff_ms,
            "retry.backoff.max.ms": max(1_000, self.backoff_ms),
            "delivery.timeout.ms": self.delivery_timeout_ms,
            "linger.ms": self.buffer_ms,
            "queue.buffering.max.messages": self.buffer_messages,
            "batch.num.messages": self.batch_messages,
            **attempt,
            **self.properties,
        }


def settle(bootstrap: str, source: str, semantics: str | None, given: Mapping[str, Any]) -> Settings:
    """Complete settings from what was given; UsageError with the reason where they cannot be."""
    word = None if semantics is None else Semantics.named(semantics)
    chosen, properties = _merged(given)
    acks = _acks(chosen["acks"], word)
    mode = _spool_mode(word, chosen["spool"], chosen["spool_mode"])
    idempotence = chosen["idempotence"]
    if idempotence not in (None, True, False):
        raise UsageError(f"idempotence={idempotence!r} cannot be: give True or False")
    if idempotence is None:
        idempotence = acks == "all" and chosen["retries"] != 0 and word is not Semantics.AT_MOST_ONCE
    retries = chosen["retries"]
    if retries is None:
        retries = {None: 3, "fallback": 3, "always": MANY_RETRIES}[mode]
        retries = 0 if word is Semantics.AT_MOST_ONCE else retries
    backoff_ms = _number("backoff_ms", chosen["backoff_ms"], 300, least=1)
    attempt_ms = ATTEMPT_MS if mode == "fallback" and "request.timeout.ms" not in properties else None
    settings = Settings(
        bootstrap=_address(bootstrap),
        source=check_source(source),
        semantics=word,
        acks=acks,
        idempotence=bool(idempotence),
        retries=_number("retries", retries, 3),
        backoff_ms=backoff_ms,
        delivery_timeout_ms=_delivery_timeout_ms(chosen["delivery_timeout_ms"], mode, retries, backoff_ms),
        attempt_ms=attempt_ms,
        buffer_ms=float(_real("buffer_ms", chosen["buffer_ms"], 5.0)),
        buffer_messages=_number("buffer_messages", chosen["buffer_messages"], 100_000, least=1),
        batch_messages=_number("batch_messages", chosen["batch_messages"], 10_000, least=1),
        when_full=_when_full(chosen["when_full"], word, mode),
        spool=_folder(chosen["spool"]),
        spool_mode=mode,
        spool_max_bytes=_at_most("spool_max_bytes", chosen["spool_max_bytes"]),
        spool_when_full=_one_of("spool_when_full", chosen["spool_when_full"], "refuse", "block"),
        keep_s=seconds(chosen["keep"]),
        transaction_ms=_real("transaction_ms", chosen["transaction_ms"], 100.0),
        transaction_records=_number("transaction_records", chosen["transaction_records"], 10_000, least=1),
        seal_every_s=seconds(chosen["seal_every_s"]),
        properties=properties,
    )
    _check(settings)
    return settings


# ------------------------------------------------------------------------------------- contradictions


def _check(settings: Settings) -> None:
    """Refuse what would make the word untrue, or what librdkafka cannot do."""
    word = settings.semantics
    if settings.idempotence and settings.acks != "all":
        _refuse(
            f"idempotence with acks={settings.acks}", "a broker can only know again what all replicas have"
        )
    if settings.idempotence and settings.retries == 0:
        _refuse(
            "idempotence with retries=0", "it is about records that are sent again: give idempotence=False"
        )
    if settings.when_full == "spool" and settings.spool_mode != "fallback":
        _refuse("when_full='spool'", "there is no spool to fall back on: give spool=FOLDER")
    if word is Semantics.AT_MOST_ONCE:
        _check_at_most_once(settings)
    elif word is Semantics.AT_LEAST_ONCE:
        _check_at_least_once(settings)
    elif word is Semantics.EXACTLY_ONCE:
        _check_exactly_once(settings)


def _check_at_most_once(settings: Settings) -> None:
    word = Semantics.AT_MOST_ONCE
    if settings.spool is not None:
        _refuse(f"{word} with a spool", "what it sends again may come twice")
    if settings.retries:
        _refuse(f"{word} with retries={settings.retries}", "what is sent again may come twice")


def _check_at_least_once(settings: Settings) -> None:
    word = Semantics.AT_LEAST_ONCE
    if settings.acks == "0":
        _refuse(f"{word} with acks=0", "nothing is confirmed, so nobody knows what to send again")
    if settings.acks == "1":
        _refuse(f"{word} with acks=1", "the leader may die with a record that it alone has confirmed")
    if settings.when_full == "drop":
        _refuse(f"{word} with when_full='drop'", "what is dropped is lost")
    if settings.retries == 0 and settings.spool is None:
        _refuse(f"{word} with retries=0 and no spool", "nothing would be sent again")


def _check_exactly_once(settings: Settings) -> None:
    word = Semantics.EXACTLY_ONCE
    if settings.acks != "all":
        _refuse(f"{word} with acks={settings.acks}", "the leader may die with a record that it alone has")
    if not settings.idempotence:
        _refuse(f"{word} with idempotence=False", "transactions are made of idempotent writes")
    if settings.spool is None:
        _refuse(
            f"{word} without a spool", "a crash would leave no way to know what was sent: give spool=FOLDER"
        )
    if settings.spool_mode != "always":
        _refuse(
            f"{word} with spool_mode='{settings.spool_mode}'",
            "a record that was never on disk is not known after a crash: use spool_mode='always'",
        )
    if settings.when_full == "drop":
        _refuse(f"{word} with when_full='drop'", "what is dropped is lost")


def _refuse(what: str, why: str) -> None:
    raise UsageError(f"{what} contradicts itself: {why}")


# --------------------------------------------------------------------------------------- single values


def _merged(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments, completed by properties that mean the same; and the other properties."""
    chosen = dict(given)
    given_properties = chosen.pop("properties") or {}
    if not isinstance(given_properties, Mapping):
        raise UsageError(f"properties={given_properties!r} cannot be: give a mapping from name to value")
    properties = dict(given_properties)
    for name, why in _OURS.items():
        if name in properties:
            raise UsageError(f"property {name} cannot be set: {why}")
    for argument, names in _SAME.items():
        for name in names:
            if name not in properties:
                continue
            value = _read(argument, name, properties.pop(name))
            if chosen.get(argument) is not None and str(chosen[argument]) != str(value):
                _refuse(f"{argument}={chosen[argument]} and property {name}={value}", "give one of them")
            chosen[argument] = value
    if _ENQUEUE_TIMEOUT in properties:  # as old producers called it: -1 for ever, 0 not at all
        wait_ms = _read("when_full", _ENQUEUE_TIMEOUT, properties.pop(_ENQUEUE_TIMEOUT))
        when_full = "block" if wait_ms < 0 else wait_ms / 1000 if wait_ms else "drop"
        if chosen.get("when_full") not in (None, when_full):
            _refuse(
                f"when_full={chosen['when_full']!r} and property {_ENQUEUE_TIMEOUT}={wait_ms}",
                "give one of them",
            )
        chosen["when_full"] = when_full
    for name in _CALLBACKS.intersection(properties):
        properties[name] = _guarded(name, properties[name])
    return chosen, properties


def _guarded(name: str, callback: Any) -> Callable[..., None]:
    """What a user's callback raises would come out of poll(), and end the thread that serves everybody."""
    if not callable(callback):
        raise UsageError(f"property {name} must be something to call, not {callback!r}")
    has_raised = False

    def guarded(*given: object) -> None:
        nonlocal has_raised
        try:
            callback(*given)
        except (Exception, SystemExit):
            if not has_raised:
                _logger.exception("%s raised; further times are not told", name)
            has_raised = True

    return guarded


def _read(argument: str, name: str, value: Any) -> Any:
    if argument == "acks":
        return value
    try:
        if argument == "idempotence":
            return {"true": True, "false": False}[str(value).lower()]
        return float(value) if argument == "buffer_ms" else int(value)
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"property {name}={value!r} cannot be understood") from None


def _acks(given: Any, word: Semantics | None) -> str:
    if given is None:
        return "0" if word is Semantics.AT_MOST_ONCE else "all"
    acks = {"-1": "all"}.get(str(given), str(given))
    if acks not in ("0", "1", "all"):
        raise UsageError(f"acks={given!r} is unknown: choose 0, 1 or all")
    return acks


def _spool_mode(word: Semantics | None, spool: Any, mode: Any) -> SpoolMode | None:
    if spool is None:
        if mode is not None:
            raise UsageError(f"spool_mode={mode!r} needs a spool: give spool=FOLDER")
        return None
    if mode is None:
        return "always" if word is Semantics.EXACTLY_ONCE else "fallback"
    if mode not in ("always", "fallback"):
        raise UsageError(f"spool_mode={mode!r} is unknown: choose always or fallback")
    return "always" if mode == "always" else "fallback"


def _delivery_timeout_ms(given: Any, mode: SpoolMode | None, retries: int, backoff_ms: int) -> int:
    if given is not None:
        return _number("delivery_timeout_ms", given, 0)
    if mode == "always":
        return FOR_EVER_MS
    if mode == "fallback":
        return min((retries + 1) * ATTEMPT_MS + retries * backoff_ms, DELIVERY_TIMEOUT_MS)
    return DELIVERY_TIMEOUT_MS


def _when_full(given: Any, word: Semantics | None, mode: SpoolMode | None) -> WhenFull:
    if given is None:
        if word is Semantics.AT_MOST_ONCE:
            return "drop"
        return "spool" if mode == "fallback" else "block"
    if isinstance(given, int | float) and not isinstance(given, bool):
        return seconds(given)
    if given in ("block", "drop", "spool"):
        return given  # type: ignore[no-any-return]  # one of the three words
    raise UsageError(f"when_full={given!r} is unknown: choose block, drop, spool or a number of seconds")


def _one_of(name: str, given: Any, first: str, second: str) -> Any:
    if given not in (first, second):
        raise UsageError(f"{name}={given!r} is unknown: choose {first} or {second}")
    return given


def _number(name: str, given: Any, default: int, least: int = 0) -> int:
    value = default if given is None else given
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}={given!r} cannot be: give a whole number, {least} or more")
    if value > _MOST:
        raise UsageError(f"{name}={given!r} is more than librdkafka can count: give at most {_MOST}")
    return value


def _at_most(name: str, given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise UsageError(f"{name}={given!r} cannot be: give a whole number of bytes")
    return given


def _folder(given: Any) -> Path | None:
    if given is None or isinstance(given, Path):
        return given
    if not isinstance(given, str) or not given.strip():
        raise UsageError(f"spool={given!r} cannot be: name a folder")
    return Path(given)


def _real(name: str, given: Any, default: float) -> float:
    value = default if given is None else given
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
        raise UsageError(f"{name}={given!r} cannot be: give a number of milliseconds, 0 or more")
    return float(value)


def _address(bootstrap: object) -> str:
    if not isinstance(bootstrap, str) or not bootstrap.strip():
        raise UsageError("a producer needs the cluster's addresses, like broker-1:9092,broker-2:9092")
    return bootstrap
