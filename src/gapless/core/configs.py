"""The look-up of settings through all layers that can give them.

A topic's value is looked up in this order: the topic's own, the broker's dynamic one, the cluster-wide
dynamic one, the broker's file, the default. The precedence is Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gapless.core.config_keys import InvalidConfig, Key, Source
from gapless.core.config_tables import BROKER_KEYS, TOPIC_KEYS

MAX_KEPT_CONFIGS = 1000


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
    replicate_flushed_only: bool
    """Whether followers get only what the leader has on stable storage."""


class Settings:
    """A broker's own settings (its file), and the look-up of every setting through all layers."""

    def __init__(self, static: Mapping[str, str] | None = None) -> None:
        self.static = dict(static or {})
        self._own: dict[str, Any] = {}
        self._topic_configs: dict[tuple[frozenset[tuple[str, str]], ...], TopicConfig] = {}
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
        """A topic's settings, resolved through all layers. Most topics have the same."""
        layers = (frozenset(own.items()), frozenset(dynamic.items()), frozenset(cluster.items()))
        config = self._topic_configs.get(layers)
        if config is None:
            if len(self._topic_configs) >= MAX_KEPT_CONFIGS:
                self._topic_configs.clear()
            config = self._topic_configs[layers] = self._resolve(own, dynamic, cluster)
        return config

    def _resolve(
        self, own: Mapping[str, str], dynamic: Mapping[str, str], cluster: Mapping[str, str]
    ) -> TopicConfig:
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
            replicate_flushed_only=value("gapless.replicate.flushed.only"),
        )
