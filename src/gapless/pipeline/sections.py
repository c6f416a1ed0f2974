"""The sections of a pipeline's definition: what each setting is called, its default, what it must be.

They are the same from a file and from Python:

    Source(bootstrap="127.0.0.1:9092", topics=["orders"])
    ToKafka(topic="orders-clean")
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from gapless.pipeline.settings import (
    Key,
    Settings,
    WrongSetting,
    a_path,
    client_settings,
    one_of,
    seconds,
    unknown,
)

DEAD_LETTERS = "dead-letters"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_OURS = {
    "bootstrap.servers": "it is `bootstrap` in [source], and in sinks of another cluster",
    "group.id": "it is `group` in [source]",
    "isolation.level": "a pipeline always reads what is committed",
    "enable.auto.commit": "a pipeline commits by itself",
    "auto.offset.reset": "it is `starting` in [source]",
    "transactional.id": "each task of a sink has its own",
    "enable.idempotence": "it is always on",
    "acks": "it is always all",
    "transaction.timeout.ms": "it is `transaction_timeout` of a sink",
}
_COMPARED = ("topic", "partition", "timestamp", "key", "value", "headers")
_MIN_TRANSACTION_S, _MAX_TRANSACTION_S = 5, 900


@dataclass(frozen=True, slots=True)
class Source(Settings):
    """Where records come from, and how their values are read."""

    bootstrap: str
    topics: Sequence[str]
    starting: str | Mapping[str, Mapping[int, int]] = "earliest"
    value: Literal["bytes", "text", "json"] = "bytes"
    schema: str | None = None
    on_loss: Literal["stop", "continue"] = "stop"
    max_records_per_batch: int = 1_000_000
    group: str | None = None

    def check(self) -> None:
        if not self.topics:
            raise WrongSetting(("topics",), "`topics` must name at least one topic")
        for topic in self.topics:
            check_topic("topics", topic)
        if self.max_records_per_batch < 1:
            raise WrongSetting(("max_records_per_batch",), "`max_records_per_batch` must be at least 1")
        if self.value == "json" and self.schema is None:
            raise WrongSetting(
                ("value",), '`value = "json"` needs a `schema`, such as "id BIGINT, amount DOUBLE"'
            )
        if self.value != "json" and self.schema is not None:
            raise WrongSetting(("schema",), '`schema` is only for `value = "json"`')
        object.__setattr__(self, "starting", _starting(self.starting, self.topics))


@dataclass(frozen=True, slots=True)
class KafkaProperties(Settings):
    """Client properties in librdkafka's words: for every client, or for one kind of them."""

    every: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=client_settings())
    java: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=client_settings())
    librdkafka: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=client_settings())

    def check(self) -> None:
        for kind, properties in (("", self.every), ("java", self.java), ("librdkafka", self.librdkafka)):
            refuse_ours(properties, (kind,) if kind else ())

    @classmethod
    def read(cls, table: object, section: Key, folder: Path) -> Self:
        if isinstance(table, Mapping):
            kinds = {kind: table[kind] for kind in ("java", "librdkafka") if kind in table}
            every = {name: value for name, value in table.items() if name not in kinds}
            table = {**kinds, "every": every}
        try:
            return super(KafkaProperties, cls).read(table, (), folder)
        except WrongSetting as wrong:
            key = wrong.key[1:] if wrong.key[:1] == ("every",) else wrong.key
            raise WrongSetting(key, wrong.problem).below(section) from None

    def with_more(self, properties: Mapping[str, str]) -> KafkaProperties:
        """The same, with properties for every client that go before these."""
        return replace(self, every={**self.every, **properties})


@dataclass(frozen=True, slots=True)
class Dedup(Settings):
    """What makes two records the same: identity (exact, for ever), or key, hash or columns for a while."""

    by: str | Sequence[str] = "identity"
    watermark: str | None = None

    def check(self) -> None:
        words = ("identity", "key", "hash")
        if isinstance(self.by, str) and self.by not in words:
            raise WrongSetting(
                ("by",), f"`by` must be {one_of(words)}, or a list of columns, not {self.by!r}"
            )
        if not isinstance(self.by, str):
            if not isinstance(self.by, list | tuple) or not all(isinstance(name, str) for name in self.by):
                raise WrongSetting(("by",), f"`by` must be {one_of(words)}, or a list of columns")
            if not self.by:
                raise WrongSetting(("by",), "`by` must name at least one column")
            for name in self.by:
                if name not in _COMPARED:
                    raise WrongSetting(("by",), f"`by` can name {one_of(_COMPARED)}, not {name!r}")
            object.__setattr__(self, "by", tuple(self.by))
        if self.by == "identity" and self.watermark is not None:
            raise WrongSetting(
                ("watermark",), '`watermark` is not for `by = "identity"`, which never forgets'
            )
        if self.by != "identity" and self.watermark is None:
            raise WrongSetting(
                ("by",), "`by` other than identity needs a `watermark`: for how long to remember (10 minutes)"
            )
        if self.watermark is not None:
            seconds("watermark", self.watermark)

    @property
    def watermark_s(self) -> float | None:
        return None if self.watermark is None else seconds("watermark", self.watermark)


@dataclass(frozen=True, slots=True)
class TransformSettings(Settings):
    """What becomes of a batch: SQL here or in a file, or a Python function; nothing of these: as it comes."""

    sql: str | None = None
    file: str | None = field(default=None, metadata=a_path())
    function: str | None = None
    stage: bool = False

    def check(self) -> None:
        given = [name for name in ("sql", "file", "function") if getattr(self, name) is not None]
        if len(given) > 1:
            raise WrongSetting((given[1],), f"`{given[1]}` and `{given[0]}` exclude each other: keep one")
        if self.function is not None and not _FUNCTION.fullmatch(self.function):
            raise WrongSetting(("function",), f"`function` must be module:function, not {self.function!r}")


@dataclass(frozen=True, slots=True)
class ToKafka(Settings):
    """A topic, of the source's cluster unless it names another."""

    ALSO = ("type",)
    topic: str | None = None
    name: str = "kafka"
    bootstrap: str | None = None
    tasks: int | None = None
    transaction_timeout: str = "60 seconds"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=client_settings())

    def check(self) -> None:
        check_name("name", self.name)
        if self.topic is not None:
            check_topic("topic", self.topic)
        check_tasks(self.tasks)
        refuse_ours(self.properties, ("properties",))
        timeout_s = seconds("transaction_timeout", self.transaction_timeout)
        if not _MIN_TRANSACTION_S <= timeout_s <= _MAX_TRANSACTION_S:
            raise WrongSetting(
                ("transaction_timeout",),
                f"`transaction_timeout` must be between {_MIN_TRANSACTION_S} seconds and 15 minutes",
            )

    @property
    def transaction_timeout_ms(self) -> int:
        return round(seconds("transaction_timeout", self.transaction_timeout) * 1000)


@dataclass(frozen=True, slots=True)
class ToDelta(Settings):
    """A Delta table: appended to, or merged into by `key`."""

    ALSO = ("type",)
    path: str = field(metadata=a_path())
    name: str = "delta"
    key: Sequence[str] = ()
    latest_by: str | None = None

    def check(self) -> None:
        check_name("name", self.name)
        _check_latest_by(self.key, self.latest_by)


@dataclass(frozen=True, slots=True)
class ToPostgres(Settings):
    """A PostgreSQL table: appended to, or upserted by `key`."""

    ALSO = ("type",)
    url: str = field(repr=False)
    table: str
    name: str = "postgres"
    key: Sequence[str] = ()
    latest_by: str | None = None
    tasks: int | None = None
    create: bool = True

    def check(self) -> None:
        check_name("name", self.name)
        check_tasks(self.tasks)
        _check_latest_by(self.key, self.latest_by)
        if "://" not in self.url and "=" not in self.url:
            raise WrongSetting(("url",), "`url` must be postgresql://user@host/database, or key=value pairs")


@dataclass(frozen=True, slots=True)
class ToParquet(Settings):
    """A folder of Parquet files with Spark's manifest."""

    ALSO = ("type",)
    path: str = field(metadata=a_path())
    name: str = "parquet"
    partition_by: Sequence[str] = ()

    def check(self) -> None:
        check_name("name", self.name)


SinkSettings = ToKafka | ToDelta | ToPostgres | ToParquet
SINKS: dict[str, type[SinkSettings]] = {
    "kafka": ToKafka,
    "delta": ToDelta,
    "postgres": ToPostgres,
    "parquet": ToParquet,
}


def sink_type(sink: SinkSettings) -> str:
    """As the file calls it."""
    return next(word for word, kind in SINKS.items() if isinstance(sink, kind))


@dataclass(frozen=True, slots=True)
class Trigger(Settings):
    """When a batch begins: every so often, as soon as there is something (the default), or once over all."""

    every: str | None = None
    once: bool = False

    def check(self) -> None:
        if self.every is not None and self.once:
            raise WrongSetting(("once",), "`once` and `every` exclude each other: keep one")
        if self.every is not None:
            seconds("every", self.every)

    @property
    def every_s(self) -> float:
        return 0.0 if self.every is None else seconds("every", self.every)


@dataclass(frozen=True, slots=True)
class SparkSettings(Settings):
    """Where Spark runs, and its own settings under their own names."""

    master: str = "local[*]"
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def check(self) -> None:
        for name in self.settings:
            if not name.startswith("spark."):
                raise unknown(name, ["master", "spark.<any setting of Spark>"])
            if name == "spark.master":
                raise WrongSetting((name,), "`spark.master` is `master` here")
            if name == "spark.app.name":
                raise WrongSetting((name,), "`spark.app.name` is the pipeline's `name`")

    @classmethod
    def read(cls, table: object, section: Key, folder: Path) -> Self:
        if isinstance(table, Mapping):
            settings = {name: value for name, value in table.items() if name != "master"}
            table = {**({"master": table["master"]} if "master" in table else {}), "settings": settings}
        try:
            return super(SparkSettings, cls).read(table, (), folder)
        except WrongSetting as wrong:
            key = wrong.key[1:] if wrong.key[:1] == ("settings",) else wrong.key
            raise WrongSetting(key, wrong.problem).below(section) from None


def check_name(key: str, name: str) -> None:
    """Names are joined by dots in groups and transactional ids, so they have none themselves."""
    if not _NAME.fullmatch(name):
        raise WrongSetting(
            (key,), f"`{key}` must be 1 to 100 letters, digits, dashes or underscores, not {name!r}"
        )


def check_topic(key: str, topic: str) -> None:
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise WrongSetting(
            (key,), f"{topic!r} cannot name a topic: use 1 to 249 letters, digits, dots, dashes, underscores"
        )


def check_tasks(tasks: int | None) -> None:
    if tasks is not None and not 1 <= tasks <= 10_000:
        raise WrongSetting(("tasks",), "`tasks` must be between 1 and 10,000")


def _check_latest_by(key: Sequence[str], latest_by: str | None) -> None:
    if latest_by is not None and (not key or latest_by in key):
        raise WrongSetting(
            ("latest_by",), "`latest_by` chooses among rows of a `key`: it needs one, and a column besides"
        )


def refuse_ours(properties: Mapping[str, str], above: Key) -> None:
    """Refuse client properties on which the guarantee rests."""
    for name in properties:
        if name in _OURS:
            raise WrongSetting((*above, name), f"`{name}` cannot be set: {_OURS[name]}")


def _starting(starting: object, topics: Sequence[str]) -> str | dict[str, dict[int, int]]:
    """The word, or offsets by topic and partition; TOML's keys are strings."""
    words = ("earliest", "latest")
    how = f"`starting` must be {one_of(words)}, or offsets such as {{ orders = {{ 0 = 17 }} }}"
    if isinstance(starting, str):
        if starting not in words:
            raise WrongSetting(("starting",), f"{how}, not {starting!r}")
        return starting
    if not isinstance(starting, Mapping) or not starting:
        raise WrongSetting(("starting",), how)
    found: dict[str, dict[int, int]] = {}
    for topic, offsets in starting.items():
        if topic not in topics:
            raise WrongSetting(("starting", topic), f"`starting` has the topic {topic!r}, `topics` has not")
        if not isinstance(offsets, Mapping):
            raise WrongSetting(("starting", topic), how)
        found[topic] = {}
        for partition, offset in offsets.items():
            if not str(partition).isdecimal() or type(offset) is not int or offset < 0:
                raise WrongSetting(
                    ("starting", topic, partition), f"{how}: partitions and offsets are numbers from 0 on"
                )
            found[topic][int(partition)] = offset
    return found
