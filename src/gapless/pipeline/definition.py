"""A pipeline's definition: a TOML file, or the same in Python. Whatever is wrong is told with its line.

    definition = Definition.load("orders.toml")

    definition = Definition(
        name="clean-orders",
        checkpoint="checkpoints/clean-orders",
        source=Source("127.0.0.1:9092", ["orders"]),
        sinks=[ToKafka("orders-clean")],
    )

Relative paths in a file start at its folder. `${NAME}` in a string of a file is that environment variable.
docs/pipeline.md explains every setting.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from gapless.errors import UsageError
from gapless.pipeline.lines import Lines
from gapless.pipeline.properties import client_properties
from gapless.pipeline.sections import (
    DEAD_LETTERS,
    SINKS,
    Dedup,
    KafkaProperties,
    SinkSettings,
    Source,
    SparkSettings,
    ToDelta,
    ToKafka,
    ToParquet,
    TransformSettings,
    Trigger,
    check_name,
)
from gapless.pipeline.settings import Key, Settings, WrongSetting, one_of, resolved, unknown, with_variables


class Origin(NamedTuple):
    """The file that a definition is from."""

    file: str
    lines: Lines


@dataclass(frozen=True, slots=True)
class Definition:
    """All that makes a pipeline. Made only if it makes sense."""

    name: str
    checkpoint: str
    source: Source
    sinks: Sequence[SinkSettings]
    _: KW_ONLY
    dedup: Dedup | None = None
    transform: TransformSettings = field(default_factory=TransformSettings)
    dead_letters: SinkSettings | None = None
    trigger: Trigger = field(default_factory=Trigger)
    kafka: KafkaProperties = field(default_factory=KafkaProperties)
    spark: SparkSettings = field(default_factory=SparkSettings)
    folder: Path = field(default_factory=Path.cwd)
    """Where relative paths start, and where the transform's function is looked for."""
    origin: Origin | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name("name", self.name)
        if not str(self.checkpoint).strip():
            raise WrongSetting(("checkpoint",), "`checkpoint` must not be empty")
        # Spark's JVM may stand in another folder than we.
        object.__setattr__(self, "checkpoint", resolved(str(self.checkpoint), self.folder))
        object.__setattr__(self, "sinks", tuple(_placed(sink, self.folder) for sink in self.sinks))
        if self.dead_letters is not None:
            object.__setattr__(self, "dead_letters", _placed(self.dead_letters, self.folder))
        if not self.sinks:
            raise WrongSetting(("sinks",), "there must be at least one sink: [[sinks]]")
        _check_sinks(self)
        client_properties(self.kafka)
        for section, sink in self.all_sinks():
            if isinstance(sink, ToKafka):
                _check_properties(self, section, sink)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The definition in a file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"cannot read {path}: it is not UTF-8 text") from None
        return cls.parse(text, str(path), path.absolute().parent)

    @classmethod
    def parse(cls, text: str, file: str = "definition", folder: Path | None = None) -> Self:
        """The definition in a text. `file` is what errors call it; relative paths start at `folder`."""
        try:
            tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(_not_toml(file, str(error))) from None
        origin = Origin(file, Lines(text))
        try:
            return cls(**_sections(with_variables(tree), folder or Path.cwd()), origin=origin)
        except WrongSetting as wrong:
            raise UsageError(f"{file}:{origin.lines.of(wrong.key)}: {wrong.problem}") from None

    def at(self, *key: str | int) -> str:
        """Where a setting is, for messages: `orders.toml:12`, or `transform.sql` if there is no file."""
        if self.origin is None:
            return ".".join(map(str, key))
        return f"{self.origin.file}:{self.origin.lines.of(key)}"

    def at_text(self, *key: str | int, line: int = 1) -> str:
        """Where a line of a string is."""
        if self.origin is None:
            return f"{self.at(*key)}, line {line}"
        return f"{self.origin.file}:{self.origin.lines.of_text(key) + line - 1}"

    def with_checkpoint(self, checkpoint: str) -> Self:
        """The same with another checkpoint; a relative path starts where we are."""
        return replace(self, checkpoint=resolved(checkpoint, Path.cwd()))

    @property
    def group(self) -> str:
        """The consumer group on the source's cluster that shows how far the pipeline is."""
        return self.source.group or f"gapless.pipeline.{self.name}"

    def bootstrap_of(self, sink: ToKafka) -> str:
        return sink.bootstrap or self.source.bootstrap

    def kafka_of(self, sink: ToKafka) -> KafkaProperties:
        """The client properties of a Kafka sink: those of [kafka] are not for a cluster of its own."""
        if self.bootstrap_of(sink) == self.source.bootstrap:
            return self.kafka.with_more(sink.properties)
        return KafkaProperties(every=sink.properties)

    def all_sinks(self) -> list[tuple[Key, SinkSettings]]:
        """Each sink and the dead letters, with where they are in the file."""
        sinks: list[tuple[Key, SinkSettings]] = [(("sinks", i), sink) for i, sink in enumerate(self.sinks)]
        return sinks if self.dead_letters is None else [*sinks, (("dead_letters",), self.dead_letters)]


def _sections(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    known = [each.name for each in fields(Definition) if each.name not in {"folder", "origin"}]
    for key in tree:
        if key not in known:
            raise unknown(key, known)
    for key in ("name", "checkpoint", "source", "sinks"):
        if key not in tree:
            words = {"source": "the section [source]", "sinks": "a sink ([[sinks]])"}
            raise WrongSetting((), f"{words.get(key, f'the key `{key}`')} is missing")
    for key in ("name", "checkpoint"):
        if not isinstance(tree[key], str):
            raise WrongSetting((key,), f"`{key}` must be a string")
    if not isinstance(tree["sinks"], list):
        raise WrongSetting(("sinks",), "sinks are a list: write [[sinks]], also if there is one")
    found: dict[str, Any] = {
        "name": tree["name"],
        "checkpoint": tree["checkpoint"],
        "sinks": [_sink(table, ("sinks", i), folder) for i, table in enumerate(tree["sinks"])],
        "folder": folder,
    }
    kinds: dict[str, type[Settings]] = {
        "source": Source,
        "kafka": KafkaProperties,
        "dedup": Dedup,
        "transform": TransformSettings,
        "trigger": Trigger,
        "spark": SparkSettings,
    }
    found |= {key: kind.read(tree[key], (key,), folder) for key, kind in kinds.items() if key in tree}
    if "dead_letters" in tree:
        found["dead_letters"] = _sink(tree["dead_letters"], ("dead_letters",), folder, name=DEAD_LETTERS)
    return found


def _sink(table: Any, section: Key, folder: Path, **defaults: str) -> SinkSettings:
    if not isinstance(table, Mapping):
        raise WrongSetting((), "expected one table of settings").below(section)
    if "type" not in table:
        raise WrongSetting((), f"the key `type` is missing: {one_of(list(SINKS))}").below(section)
    kind = SINKS.get(table["type"]) if isinstance(table["type"], str) else None
    if kind is None:
        raise WrongSetting(("type",), f"`type` must be {one_of(list(SINKS))}, not {table['type']!r}").below(
            section
        )
    settings = {name: value for name, value in table.items() if name != "type"}
    return kind.read({**defaults, **settings}, section, folder)


def _placed(sink: SinkSettings, folder: Path) -> SinkSettings:
    return replace(sink, path=resolved(sink.path, folder)) if isinstance(sink, ToDelta | ToParquet) else sink


def _check_sinks(definition: Definition) -> None:
    names: set[str] = set()
    places: dict[str, str] = {definition.checkpoint: "the checkpoint"}
    for section, sink in definition.all_sinks():
        if sink.name in names:
            raise WrongSetting(
                ("name",), f"there is already a sink named {sink.name!r}: give each a `name` of its own"
            ).below(section)
        names.add(sink.name)
        path = getattr(sink, "path", None)
        if path is not None and path in places:
            raise WrongSetting(("path",), f"`path` is the same as that of {places[path]}").below(section)
        places |= {path: f"the sink {sink.name!r}"} if path is not None else {}
        if (
            isinstance(sink, ToKafka)
            and sink.topic in definition.source.topics
            and definition.bootstrap_of(sink) == definition.source.bootstrap
        ):
            raise WrongSetting(
                ("topic",), f"the topic {sink.topic!r} is also a source: the pipeline would feed itself"
            ).below(section)


def _check_properties(definition: Definition, section: Key, sink: ToKafka) -> None:
    try:
        client_properties(definition.kafka_of(sink))
    except WrongSetting as wrong:
        raise WrongSetting(("properties", *wrong.key[1:]), wrong.problem).below(section) from None


def _not_toml(file: str, error: str) -> str:
    """tomllib's message, with the line where ours have it."""
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", error)
    if found is None:
        return f"{file}: {error[:1].lower()}{error[1:]}"
    return f"{file}:{found[2]}: {found[1][:1].lower()}{found[1][1:]} (column {found[3]})"
