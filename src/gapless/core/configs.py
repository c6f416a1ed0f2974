"""Every setting that a topic or a broker knows: name, type, default, and what a value must satisfy.

Names, defaults and precedence are Kafka's. A topic's value is looked up in this order: the topic's own,
the broker's dynamic one, the cluster-wide dynamic one, the broker's file, the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

TOPIC, BROKER = 2, 4  # Kafka's codes for config resources
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
MAX_VALUE_CHARACTERS = 1000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class InvalidConfig(Exception):
    """A setting that cannot be accepted; the message names it and says what would be."""


class Kind(IntEnum):
    """Kafka's codes for config types."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """Kafka's codes for where a value came from."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    """A broker setting that serves as a topic setting's default; its value times `factor`."""

    name: str
    factor: int = 1

    def scaled(self, text: str) -> str:
        """The topic setting's value. -1 means "no limit" in every unit, and so does more than fits."""
        if self.factor == 1 or int(text) < 0:
            return text
        return str(min(LONG_MAX, int(text) * self.factor))


@dataclass(frozen=True, slots=True)
class Key:
    """One setting's definition."""

    name: str
    kind: Kind
    default: str
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    synonyms: tuple[Synonym, ...] = ()

    def parse(self, text: str) -> Any:
        """The typed value of `text`; raises `InvalidConfig`."""
        if len(text) > MAX_VALUE_CHARACTERS:
            raise InvalidConfig(
                f"Invalid value for configuration {self.name}: it has {len(text)} characters, "
                f"at most {MAX_VALUE_CHARACTERS} are allowed"
            )
        try:
            value = _PARSERS[self.kind](text.strip())
        except ValueError:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {self.name}: Not a {self.kind.name.lower()}"
            ) from None
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_range(text, value)
        for item in value if isinstance(value, list) else [value]:
            if self.choices and item not in self.choices:
                raise InvalidConfig(
                    f"Invalid value {text} for configuration {self.name}: "
                    f"String must be one of: {', '.join(self.choices)}"
                )
        return value

    def _check_range(self, text: str, value: float) -> None:
        limit = INT_MAX if self.kind is Kind.INT else LONG_MAX
        low = -limit - 1 if self.at_least is None else self.at_least
        high = limit if self.at_most is None else self.at_most
        if value < low:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {self.name}: Value must be at least {low}"
            )
        if value > high:
            raise InvalidConfig(
                f"Invalid value {text} for configuration {self.name}: Value must be at most {high}"
            )


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_PARSERS: dict[Kind, Callable[[str], Any]] = {
    Kind.BOOLEAN: _boolean,
    Kind.STRING: str,
    Kind.INT: int,
    Kind.LONG: int,
    Kind.DOUBLE: float,
    Kind.LIST: lambda text: [item.strip() for item in text.split(",") if item.strip()],
}


def _table(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}


TOPIC_KEYS = _table(
    Key(
        "cleanup.policy",
        Kind.LIST,
        "delete",
        "What becomes of old segments.",
        choices=("delete", "compact"),
        synonyms=(Synonym("log.cleanup.policy"),),
    ),
    Key(
        "compression.type",
        Kind.STRING,
        "producer",
        "The codec on disk; 'producer' keeps what was sent.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=(Synonym("compression.type"),),
    ),
    Key(
        "delete.retention.ms",
        Kind.LONG,
        str(DAY_MS),
        "How long a tombstone outlives compaction.",
        at_least=0,
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    ),
    Key(
        "file.delete.delay.ms",
        Kind.LONG,
        "60000",
        "How long a dropped file stays on disk.",
        at_least=0,
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    ),
    Key(
        "flush.messages",
        Kind.LONG,
        str(LONG_MAX),
        "fsync after this many records. 1: no record is acknowledged or readable before it is on disk.",
        at_least=1,
        synonyms=(Synonym("log.flush.interval.messages"),),
    ),
    Key(
        "flush.ms",
        Kind.LONG,
        str(LONG_MAX),
        "fsync at least this often while there is something to flush.",
        at_least=0,
        synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    ),
    Key(
        "index.interval.bytes",
        Kind.INT,
        "4096",
        "Bytes of log between two index entries.",
        at_least=0,
        synonyms=(Synonym("log.index.interval.bytes"),),
    ),
    Key(
        "max.compaction.lag.ms",
        Kind.LONG,
        str(LONG_MAX),
        "The longest that a record may stay uncompacted.",
        at_least=1,
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    Key(
        "max.message.bytes",
        Kind.INT,
        "1048588",
        "The largest batch that is accepted.",
        at_least=0,
        synonyms=(Synonym("message.max.bytes"),),
    ),
    Key(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        str(HOUR_MS),
        "How far in the future a record's time may lie.",
        at_least=0,
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    ),
    Key(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        str(LONG_MAX),
        "How far in the past a record's time may lie.",
        at_least=0,
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    ),
    Key(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whose clock stamps records: producer's or broker's.",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=(Synonym("log.message.timestamp.type"),),
    ),
    Key(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        "0.5",
        "How dirty a log must be before it is compacted.",
        at_least=0,
        at_most=1,
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    Key(
        "min.compaction.lag.ms",
        Kind.LONG,
        "0",
        "The shortest that a record stays uncompacted.",
        at_least=0,
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    Key(
        "min.insync.replicas",
        Kind.INT,
        "1",
        "acks=all is refused when fewer replicas are in sync.",
        at_least=1,
        synonyms=(Synonym("min.insync.replicas"),),
    ),
    Key(
        "retention.bytes",
        Kind.LONG,
        "-1",
        "The size that a partition is kept within; -1: unbounded.",
        synonyms=(Synonym("log.retention.bytes"),),
    ),
    Key(
        "retention.ms",
        Kind.LONG,
        str(7 * DAY_MS),
        "The age after which a segment is dropped; -1: never.",
        at_least=-1,
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", 60_000),
            Synonym("log.retention.hours", HOUR_MS),
        ),
    ),
    Key(
        "segment.bytes",
        Kind.INT,
        str(2**30),
        "The size at which a new segment begins.",
        at_least=1024,
        synonyms=(Synonym("log.segment.bytes"),),
    ),
    Key(
        "segment.ms",
        Kind.LONG,
        str(7 * DAY_MS),
        "The age at which a new segment begins.",
        at_least=1,
        synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    ),
    Key(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        "false",
        "Whether a replica out of sync may lead.",
        synonyms=(Synonym("unclean.leader.election.enable"),),
    ),
)

_OWN_BROKER_KEYS = _table(
    Key("auto.create.topics.enable", Kind.BOOLEAN, "true", "Create a topic when a producer first names it."),
    Key(
        "connections.max.idle.ms",
        Kind.LONG,
        "600000",
        "Close a connection that was silent for so long.",
        at_least=1,
    ),
    Key("group.consumer.heartbeat.interval.ms", Kind.INT, "5000", "How often members are heard.", at_least=1),
    Key("group.consumer.max.size", Kind.INT, str(INT_MAX), "The most members of such a group.", at_least=1),
    Key("group.consumer.session.timeout.ms", Kind.INT, "45000", "How long it may be silent.", at_least=1),
    Key(
        "group.coordinator.state.max.bytes",
        Kind.LONG,
        str(256 * 2**20),
        "Memory for groups, members and committed offsets; past it nothing new is taken.",
        at_least=2**20,
    ),
    Key(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        "0",
        "How long an empty group waits for more members before its first rebalance.",
        at_least=0,
    ),
    Key(
        "group.max.session.timeout.ms",
        Kind.INT,
        "1800000",
        "The longest session that a group's member may ask for.",
        at_least=1,
    ),
    Key("group.max.size", Kind.INT, str(INT_MAX), "The most members that a group may have.", at_least=1),
    Key(
        "group.min.session.timeout.ms",
        Kind.INT,
        "6000",
        "The shortest session that a group's member may ask for.",
        at_least=1,
    ),
    Key(
        "offset.metadata.max.bytes",
        Kind.INT,
        "4096",
        "The longest text that may be committed with an offset.",
        at_least=0,
    ),
    Key(
        "offsets.retention.check.interval.ms",
        Kind.LONG,
        "600000",
        "How often committed offsets are looked through for expired ones.",
        at_least=1,
    ),
    Key(
        "offsets.retention.minutes",
        Kind.INT,
        str(7 * 24 * 60),
        "How long the offsets of a group without members are kept.",
        at_least=1,
    ),
    Key(
        "offsets.topic.num.partitions",
        Kind.INT,
        "50",
        "Partitions of __consumer_offsets, when it is created.",
        at_least=1,
    ),
    Key(
        "offsets.topic.replication.factor",
        Kind.INT,
        "1",
        "Replicas of __consumer_offsets, when it is created.",
        at_least=1,
    ),
    Key(
        "transaction.coordinator.state.max.bytes",
        Kind.LONG,
        str(256 * 2**20),
        "Memory for transactional ids; past it idle ones are forgotten, and then new ones are refused.",
        at_least=2**20,
    ),
    Key(
        "transaction.max.timeout.ms",
        Kind.INT,
        "900000",
        "The longest timeout that a transactional producer may ask for.",
        at_least=1,
    ),
    Key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Kind.INT,
        str(HOUR_MS),
        "How often unused transactional ids are looked for.",
        at_least=1,
    ),
    Key(
        "transactional.id.expiration.ms",
        Kind.INT,
        str(7 * DAY_MS),
        "How long an unused transactional id is remembered.",
        at_least=1,
    ),
    Key(
        "transaction.state.log.num.partitions",
        Kind.INT,
        "50",
        "Partitions of __transaction_state, when it is created.",
        at_least=1,
    ),
    Key(
        "transaction.state.log.replication.factor",
        Kind.INT,
        "1",
        "Replicas of __transaction_state, when it is created.",
        at_least=1,
    ),
    Key("default.replication.factor", Kind.INT, "1", "Replicas of a topic that does not say.", at_least=1),
    Key("delete.topic.enable", Kind.BOOLEAN, "true", "Whether topics can be deleted at all."),
    Key(
        "fetch.max.bytes",
        Kind.INT,
        str(55 * 2**20),
        "The most that one fetch may answer with.",
        at_least=1024,
    ),
    Key(
        "log.cleaner.backoff.ms",
        Kind.LONG,
        "15000",
        "How long compaction waits before it looks for work again.",
        at_least=1,
    ),
    Key(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        str(128 * 2**20),
        "Memory for the keys of one pass of compaction; with more keys it takes several passes.",
        at_least=2**10,
    ),
    Key(
        "log.retention.check.interval.ms", Kind.LONG, "300000", "How often retention is applied.", at_least=1
    ),
    Key("max.connections", Kind.INT, "10000", "Connections accepted at the same time.", at_least=1),
    Key("max.incremental.fetch.session.cache.slots", Kind.INT, "1000", "Fetch sessions kept.", at_least=0),
    Key(
        "max.request.partition.size.limit",
        Kind.INT,
        "2000",
        "Partitions in one DescribeTopicPartitions answer.",
        at_least=1,
    ),
    Key("node.id", Kind.INT, "0", "This broker's number in the cluster.", at_least=0),
    Key("num.partitions", Kind.INT, "1", "Partitions of a topic that does not say.", at_least=1),
    Key(
        "producer.id.expiration.ms",
        Kind.INT,
        str(DAY_MS),
        "How long a silent producer's sequences are remembered.",
        at_least=1,
    ),
    Key(
        "queued.max.request.bytes",
        Kind.LONG,
        str(256 * 2**20),
        "Memory for requests that are still arriving; past it the slowest sender is disconnected.",
        at_least=2**20,
    ),
    Key(
        "socket.request.max.bytes",
        Kind.INT,
        str(100 * 2**20),
        "The largest request that is read.",
        at_least=1024,
    ),
)


def _synonym_keys() -> Iterator[Key]:
    """A broker setting for each synonym of a topic setting: the same rule, in its own unit."""
    for key in TOPIC_KEYS.values():
        for synonym in key.synonyms:
            default = key.default if synonym.factor == 1 else str(int(key.default) // synonym.factor)
            yield Key(synonym.name, key.kind, default, key.doc, key.at_least, key.at_most, key.choices)


BROKER_KEYS: dict[str, Key] = {**{key.name: key for key in _synonym_keys()}, **_OWN_BROKER_KEYS}

DYNAMIC_BROKER_KEYS = frozenset(key.name for key in _synonym_keys())
"""Broker settings that can be altered while it runs: the defaults of topic settings."""


class Found(NamedTuple):
    """A setting's value as text, and who gave it under which name."""

    value: str
    source: Source
    name: str


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings as the rules use them."""

    cleanup_policy: tuple[str, ...]
    compression_type: str
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    flush_messages: int
    flush_ms: int
    max_message_bytes: int
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    log_append_time: bool
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int
    index_interval_bytes: int
    file_delete_delay_ms: int

    flush_before_ack: bool
    """Whether a record counts as written only once it is on stable storage."""


class Settings:
    """A broker's own settings (its file), and the look-up of every setting through all layers."""

    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        self.static = dict(static or {})
        self._own: dict[str, Any] = {}
        for name, text in self.static.items():
            if name not in BROKER_KEYS:
                raise InvalidConfig(f"unknown setting {name}")
            BROKER_KEYS[name].parse(text)

    def get(self, name: str) -> Any:
        """The typed value of a broker setting that cannot change while it runs."""
        if name not in self._own:
            key = BROKER_KEYS[name]
            self._own[name] = key.parse(self.static.get(name, key.default))
        return self._own[name]

    def broker_layers(
        self, key: Key, dynamic: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Iterator[Found]:
        """All values that a broker setting has, the one in force first."""
        if key.name in dynamic:
            yield Found(dynamic[key.name], Source.DYNAMIC_BROKER, key.name)
        if key.name in cluster:
            yield Found(cluster[key.name], Source.DYNAMIC_DEFAULT_BROKER, key.name)
        if key.name in self.static:
            yield Found(self.static[key.name], Source.STATIC_BROKER, key.name)
        yield Found(key.default, Source.DEFAULT, key.name)

    def topic_layers(
        self, key: Key, own: Mapping[str, str], dynamic: Mapping[str, str], cluster: Mapping[str, str]
    ) -> Iterator[Found]:
        """All values that a topic setting has, the one in force first."""
        if key.name in own:
            yield Found(own[key.name], Source.TOPIC, key.name)
        layers = (
            (dynamic, Source.DYNAMIC_BROKER),
            (cluster, Source.DYNAMIC_DEFAULT_BROKER),
            (self.static, Source.STATIC_BROKER),
        )
        for values, source in layers:
            for synonym in key.synonyms:
                if synonym.name in values:
                    yield Found(synonym.scaled(values[synonym.name]), source, synonym.name)
        yield Found(key.default, Source.DEFAULT, key.synonyms[0].name)

    def topic_config(
        self, own: Mapping[str, str], dynamic: Mapping[str, str], cluster: Mapping[str, str]
    ) -> TopicConfig:
        """A topic's settings, resolved through all layers."""

        def value(name: str) -> Any:
            key = TOPIC_KEYS[name]
            return key.parse(next(self.topic_layers(key, own, dynamic, cluster)).value)

        return TopicConfig(
            cleanup_policy=tuple(value("cleanup.policy")),
            compression_type=value("compression.type"),
            delete_retention_ms=value("delete.retention.ms"),
            min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=value("min.compaction.lag.ms"),
            max_compaction_lag_ms=value("max.compaction.lag.ms"),
            flush_messages=value("flush.messages"),
            flush_ms=value("flush.ms"),
            max_message_bytes=value("max.message.bytes"),
            timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
            timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
            log_append_time=value("message.timestamp.type") == "LogAppendTime",
            min_insync_replicas=value("min.insync.replicas"),
            retention_bytes=value("retention.bytes"),
            retention_ms=value("retention.ms"),
            segment_bytes=value("segment.bytes"),
            segment_ms=value("segment.ms"),
            index_interval_bytes=value("index.interval.bytes"),
            file_delete_delay_ms=value("file.delete.delay.ms"),
            flush_before_ack=value("flush.messages") == 1,
        )
