"""Looks at a definition before it runs: everything that can be known to fail is told now, cheap things first.

    for finding in check(Definition.load("orders.toml")):
        print(finding.state, finding.what, finding.words)

Nothing is written anywhere. What needs Spark, which takes seconds to start, is looked at only if all the rest
is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import ExitCode, GaplessError, Unreachable, UsageError
from gapless.pipeline.belonging import NOTE, cluster_of, fitting_note
from gapless.pipeline.complaints import problem_of, unsaid
from gapless.pipeline.definition import Definition
from gapless.pipeline.failures import explain
from gapless.pipeline.folder import CheckpointFolder
from gapless.pipeline.functions import NeedsSpark
from gapless.pipeline.lending import session_during
from gapless.pipeline.notes import last_finished
from gapless.pipeline.plans import UnrepeatablePlan, refuse_unrepeatable
from gapless.pipeline.properties import client_properties
from gapless.pipeline.sections import KafkaProperties, SinkSettings, ToKafka, ToPostgres, sink_type
from gapless.pipeline.session import require_spark
from gapless.pipeline.settings import Key
from gapless.pipeline.sinks.making import fit, make_sink
from gapless.pipeline.source import COLUMNS, starting_offsets
from gapless.pipeline.transform import Transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 3.0
_SOURCE_SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_PER_BATCH = {
    "Aggregate": "GROUP BY, DISTINCT and aggregates",
    "Distinct": "DISTINCT",
    "Deduplicate": "removing duplicates",
    "Window": "window functions",
    "Sort": "ORDER BY",
    "GlobalLimit": "LIMIT",
}


class State(Enum):
    OK = "ok"
    NOTE = "note"
    FAILED = "failed"
    SKIPPED = "skipped"


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    state: State
    words: str
    exit_code: ExitCode = ExitCode.OK


Findings = Iterator[Finding]


class Refused(GaplessError):
    """The pipeline cannot run. The message says why, and where."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.words)
        self.exit_code = finding.exit_code


def check(definition: Definition, *, on_finding: Callable[[Finding], None] | None = None) -> list[Finding]:
    """All findings, in the order in which they were made."""
    found = check_quickly(definition, on_finding=on_finding)
    if exit_code_of(found) is ExitCode.OK:
        return found + _told(_findings_of("transform", lambda: _with_spark(definition)), on_finding)
    skipped = Finding("transform", State.SKIPPED, "not looked at: Spark starts when the rest is well")
    return found + _told([skipped], on_finding)


def check_quickly(
    definition: Definition, *, on_finding: Callable[[Finding], None] | None = None
) -> list[Finding]:
    """What can be found out without Spark, in seconds at most."""
    return [
        finding
        for what, step in _cheap_steps(definition)
        for finding in _told(_findings_of(what, step), on_finding)
    ]


def refuse_early(definition: Definition) -> None:
    """Raise the first thing that is known to fail, before Spark is started for nothing."""
    for _, step in _cheap_steps(definition):
        for finding in step():
            if finding.state is State.FAILED:
                raise Refused(finding)


def _told(findings: Iterable[Finding], on_finding: Callable[[Finding], None] | None) -> list[Finding]:
    found = []
    for finding in findings:
        found.append(finding)
        if on_finding is not None:
            on_finding(finding)
    return found


def exit_code_of(findings: Sequence[Finding]) -> ExitCode:
    """Of the first thing that failed."""
    return next((each.exit_code for each in findings if each.state is State.FAILED), ExitCode.OK)


def _findings_of(what: str, step: Callable[[], Findings]) -> Findings:
    try:
        yield from step()
    except GaplessError as error:
        yield Finding(what, State.FAILED, str(error), error.exit_code)


def _cheap_steps(definition: Definition) -> list[tuple[str, Callable[[], Findings]]]:
    clusters = _Clusters(definition)

    def transform() -> Findings:
        with suppress(NeedsSpark):  # then it is looked at when Spark is there
            Transform(definition)
        yield Finding("definition", State.OK, _summary(definition))

    def spark() -> Findings:
        yield Finding("spark", State.OK, f"{len(require_spark())} jars, master {definition.spark.master}")

    def of_sink(key: Key, sink: ToKafka | ToPostgres) -> Callable[[], Findings]:
        if isinstance(sink, ToKafka):
            return lambda: _kafka_sink(clusters, key, sink)
        return lambda: _postgres_sink(definition, key, sink)

    reachable = [
        (f"sink {sink.name}", of_sink(key, sink))
        for key, sink in definition.all_sinks()
        if isinstance(sink, ToKafka | ToPostgres)
    ]
    return [
        ("definition", transform),
        ("spark", spark),
        ("source", lambda: _source(clusters)),
        *reachable,
    ]


def _summary(definition: Definition) -> str:
    sinks = ", ".join(f"{sink.name} ({sink_type(sink)})" for sink in definition.sinks)
    dead = ", with dead letters" if definition.dead_letters is not None else ""
    return f"{definition.name}: {', '.join(definition.source.topics)} → {sinks}{dead}"


def _source(clusters: _Clusters) -> Findings:
    definition = clusters.definition
    source = definition.source
    partitions = clusters.partitions(("source", "bootstrap"), source.bootstrap, definition.kafka)
    missing = [topic for topic in source.topics if topic not in partitions]
    if missing:
        raise UsageError(_no_topic(definition, ("source", "topics"), missing, source.bootstrap))
    if not isinstance(source.starting, str):
        try:
            starting_offsets(source.starting, {topic: partitions[topic] for topic in source.topics})
        except UsageError as error:
            raise UsageError(f"{definition.at('source', 'starting')}: {error}") from None
    count = sum(len(partitions[topic]) for topic in source.topics)
    yield Finding("source", State.OK, f"{source.bootstrap}: {_count(count, 'partition')}")


def _kafka_sink(clusters: _Clusters, key: Key, sink: ToKafka) -> Findings:
    definition = clusters.definition
    bootstrap = definition.bootstrap_of(sink)
    partitions = clusters.partitions((*key, "bootstrap"), bootstrap, definition.kafka_of(sink))
    if sink.topic is not None and sink.topic not in partitions:
        raise UsageError(_no_topic(definition, (*key, "topic"), [sink.topic], bootstrap))
    topic = "topics as the rows say" if sink.topic is None else f"topic {sink.topic}"
    yield Finding(f"sink {sink.name}", State.OK, f"{bootstrap}: {topic}")


def _no_topic(definition: Definition, key: Key, topics: Sequence[str], bootstrap: str) -> str:
    return (
        f"{definition.at(*key)}: there is no topic {', '.join(topics)} at {bootstrap} "
        f"(make it: gapless topics create {topics[0]} --bootstrap {bootstrap})"
    )


class _Clusters:
    """Asks each cluster once what topics it has, and waits once for one that is away."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._answers: dict[tuple[str, str], dict[str, list[int]] | str] = {}

    def partitions(self, key: Key, bootstrap: str, kafka: KafkaProperties) -> dict[str, list[int]]:
        """The partitions of a cluster's topics, or the reason why it cannot be asked, within seconds."""
        properties = client_properties(kafka)
        asked = (bootstrap, repr(properties))
        if asked not in self._answers:
            self._answers[asked] = _ask(properties.for_librdkafka(bootstrap))
        answer = self._answers[asked]
        if isinstance(answer, str):
            where = self.definition.at(*key)
            raise Unreachable(f"{where}: cannot reach a Kafka broker at {bootstrap}: {answer}")
        return answer


def _ask(properties: dict[str, Any]) -> dict[str, list[int]] | str:
    """The partitions by topic, or why there is no answer."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    reasons: list[str] = []
    try:
        admin = AdminClient(properties | {"error_cb": lambda error: reasons.append(error.str())})
    except KafkaException as error:
        return str(error.args[0].str())
    try:
        topics = admin.list_topics(timeout=PATIENCE_S).topics
    except KafkaException as error:
        admin.poll(0)  # lets it tell its reasons
        # It says: host:1/bootstrap: Connect to ipv4#... failed: Connection refused (after 0ms in state ...)
        reason = reasons[0] if reasons else str(error.args[0].str())
        return reason.split(" (after ")[0].rpartition(" failed: ")[2]
    return {name: sorted(topic.partitions) for name, topic in topics.items() if topic.error is None}


def _postgres_sink(definition: Definition, key: Key, sink: ToPostgres) -> Findings:
    try:
        from gapless.pipeline.sinks.postgres.connection import clear_errors, connect, parsed, place

        url = parsed(sink.url)
        with clear_errors(place(url), sink.table), connect(url) as connection:
            server = f"PostgreSQL {connection.info.server_version // 10_000} at {place(url)}"
    except GaplessError as error:
        what = f"sink {sink.name}"
        yield Finding(what, State.FAILED, f"{definition.at(*key, 'url')}: {error}", error.exit_code)
        return
    yield Finding(f"sink {sink.name}", State.OK, f"{server}: table {sink.table}")


def _with_spark(definition: Definition) -> Findings:
    with session_during(definition) as spark:
        yield from _checkpoint(definition, spark)
        yield from _transform(definition, spark)


def _checkpoint(definition: Definition, spark: SparkSession) -> Findings:
    folder = CheckpointFolder(spark, definition.checkpoint)
    if folder.read(NOTE) is None:  # a new one fits any definition
        return
    reading = client_properties(definition.kafka).for_librdkafka(definition.source.bootstrap)
    try:
        fitting_note(folder, definition, cluster_of(reading, list(definition.source.topics)))
    except GaplessError as error:
        yield Finding("checkpoint", State.FAILED, str(error), error.exit_code)
        return
    last = last_finished(folder)
    after = "its beginning" if last is None else f"batch {last}"
    yield Finding("checkpoint", State.OK, f"{definition.checkpoint}: goes on after {after}")


def _transform(definition: Definition, spark: SparkSession) -> Findings:
    from pyspark.errors import PySparkException

    from gapless.pipeline.poison import judge_records

    source = definition.source
    try:
        records = spark.createDataFrame([], _SOURCE_SCHEMA).select(*COLUMNS)
        with unsaid():
            good, bad = judge_records(records, source.value, source.schema)
    except PySparkException as error:
        raise UsageError(f"{definition.at('source', 'schema')}: {problem_of(error).words}") from None
    except GaplessError as error:
        raise UsageError(f"{definition.at('source', 'schema')}: {error}") from None
    transform = Transform(definition)
    rows = transform.apply(good)
    yield Finding("transform", State.OK, ", ".join(f"{name} {kind}" for name, kind in rows.dtypes))
    yield from _repeatable(definition, rows, good)
    for key, sink in definition.all_sinks():
        is_dead = sink is definition.dead_letters
        its_rows = bad if is_dead else rows
        if its_rows is None:
            words = "nothing will come: bytes are never unreadable (see `value` in [source])"
            yield Finding(f"sink {sink.name}", State.NOTE, words)
        else:
            transformed = transform.is_given and sink is not definition.dead_letters
            yield from _rows_to(definition, key, sink, fit(its_rows, sink, transformed=transformed))


def _repeatable(definition: Definition, rows: DataFrame, batch: DataFrame) -> Findings:
    kinds = _kinds_in(rows._jdf.queryExecution().analyzed())
    for words in sorted({words for kind, words in _PER_BATCH.items() if kind in kinds}):
        yield Finding("transform", State.NOTE, f"{words} see the rows of one micro-batch at a time")
    if definition.transform.stage:
        yield Finding("transform", State.OK, "each batch is staged before it is written (stage = true)")
        return
    try:
        refuse_unrepeatable(rows, batch)
    except UnrepeatablePlan as error:
        yield Finding("transform", State.FAILED, f"{_transform_at(definition)}: {error}", error.exit_code)


def _rows_to(definition: Definition, key: Key, settings: SinkSettings, rows: DataFrame) -> Findings:
    what = f"sink {settings.name}"
    try:
        sink = make_sink(definition, settings)
        try:
            with unsaid():
                sink.check(rows.schema)
        finally:
            sink.close()
    except Exception as error:  # noqa: BLE001 - drivers raise what they like, and a check must say it
        explained = explain(error)
        yield Finding(what, State.FAILED, f"{definition.at(*key)}: {explained}", explained.exit_code)
        return
    yield Finding(what, State.OK, f"takes these rows{_how(settings, rows)}")


def _how(settings: SinkSettings, rows: DataFrame) -> str:
    """How a sink with markers will share them out."""
    if not isinstance(settings, ToKafka | ToPostgres):
        return ""
    by_key = isinstance(settings, ToPostgres) and settings.key
    shuffles = "Exchange" in rows._jdf.queryExecution().executedPlan().toString()
    if settings.tasks is None and not by_key and not shuffles:
        return ", by a task for each source partition (aligned)"
    return f", by {_count(settings.tasks, 'task')} (shuffled)" if settings.tasks else " (shuffled)"


def _transform_at(definition: Definition) -> str:
    given = next((each for each in ("sql", "file", "function") if getattr(definition.transform, each)), None)
    return definition.at("transform", given) if given is not None else definition.at("transform")


def _kinds_in(plan: Any) -> set[str]:
    """The kinds of steps in a plan. Sorting inside of a window is the window's own."""
    found = {str(plan.getClass().getSimpleName())}
    children = plan.children()
    for index in range(children.size()):
        found |= _kinds_in(children.apply(index))
    return found


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
