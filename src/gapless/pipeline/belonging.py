"""What a checkpoint belongs to: one pipeline, one cluster, its topics, and the sinks that had every batch.

The definition may change between two runs, and what it names may have been replaced. Where the checkpoint's
offsets would then mean other records, or a sink would lack some for ever, the pipeline does not start. It is
looked at once, before the first batch, and noted beside the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import GaplessError, Unreachable, UsageError
from gapless.pipeline.loss import SourceReplaced, positions
from gapless.pipeline.notes import last_finished
from gapless.pipeline.sinks.numbered import BEGUN_FILE
from gapless.pipeline.tasks import PLAN_FILE

if TYPE_CHECKING:
    from gapless.pipeline.definition import Definition
    from gapless.pipeline.folder import CheckpointFolder

NOTE = "pipeline.json"
_PATIENCE_S = 30.0
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class NotItsCheckpoint(UsageError):
    """The checkpoint does not fit the definition any more. The message says what to do."""


class CheckpointUnreadable(GaplessError):
    """A file of the checkpoint is not what it was."""


class Cluster(NamedTuple):
    """The source's cluster and its topics, by the ids that they get when they are made."""

    id: str
    topics: Mapping[str, str]
    """Without an id for clusters that give none."""


@dataclass(slots=True)
class _Note:
    """What was true when the pipeline started last."""

    name: str
    cluster: str = ""
    topics: dict[str, str] = field(default_factory=dict)
    """Those that are read, and their ids."""
    former_topics: dict[str, str] = field(default_factory=dict)
    sinks: list[str] = field(default_factory=list)
    former_sinks: dict[str, int] = field(default_factory=dict)
    """Those that were taken out of the definition, and the last batch that was done then."""
    reading: str = ""
    """How values are read: tells apart what is a dead letter."""
    remembered: str | None = None
    """By what Spark remembers records for a while; nothing if it does not. None: not known."""


def claim(folder: CheckpointFolder, definition: Definition, cluster: Cluster) -> None:
    """Let the checkpoint be this definition's; raises if it cannot be."""
    note = fitting_note(folder, definition, cluster)
    if note != folder.read(NOTE):
        folder.write(NOTE, note)


def fitting_note(folder: CheckpointFolder, definition: Definition, cluster: Cluster) -> bytes:
    """What the checkpoint would belong to from now on; raises if it cannot be this definition's."""
    data = folder.read(NOTE)
    note = _Note(definition.name) if data is None else _read(data, definition)
    if note.name != definition.name:
        raise NotItsCheckpoint(
            f"the checkpoint {definition.checkpoint} belongs to the pipeline {note.name!r}, not to "
            f"{definition.name!r}: give this one a checkpoint of its own, or its old name back"
        )
    _look_at_cluster(note, definition, cluster)
    _look_at_topics(note, folder, definition, cluster)
    _look_at_sinks(note, folder, definition)
    _look_at_reading(note, folder, definition)
    _look_at_memory(note, folder, definition)
    return json.dumps(asdict(note), sort_keys=True).encode()


def cluster_of(properties: Mapping[str, Any], topics: list[str]) -> Cluster:
    """The ids of a cluster and of those of the topics that are there."""
    from confluent_kafka import KafkaException, TopicCollection
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(dict(properties))
    try:
        known = admin.list_topics(timeout=_PATIENCE_S)
        there = [topic for topic in topics if topic in known.topics and known.topics[topic].error is None]
        asked = admin.describe_topics(TopicCollection(there), request_timeout=_PATIENCE_S) if there else {}
        ids = {topic: str(answer.result(_PATIENCE_S + 1).topic_id or "") for topic, answer in asked.items()}
    except (KafkaException, TimeoutError) as error:
        where = properties["bootstrap.servers"]
        raise Unreachable(f"cannot reach a Kafka broker at {where}: {error}") from None
    cluster = str(getattr(known, "cluster_id", None) or "")
    return Cluster(cluster, {topic: found.replace(_NO_ID, "") for topic, found in ids.items()})


def _read(data: bytes, definition: Definition) -> _Note:
    try:
        return _Note(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise CheckpointUnreadable(
            f"gapless/{NOTE} of the checkpoint {definition.checkpoint} cannot be read ({error}): "
            "bring the whole checkpoint back from a copy"
        ) from None


def _look_at_cluster(note: _Note, definition: Definition, cluster: Cluster) -> None:
    if note.cluster and cluster.id and note.cluster != cluster.id:
        raise NotItsCheckpoint(
            f"the checkpoint {definition.checkpoint} has offsets of the Kafka cluster {note.cluster}, and "
            f"{definition.source.bootstrap} is the cluster {cluster.id}, where they mean other records: "
            "mend `bootstrap`, or start a new pipeline with another name and checkpoint"
        )
    note.cluster = cluster.id or note.cluster


def _look_at_topics(note: _Note, folder: CheckpointFolder, definition: Definition, cluster: Cluster) -> None:
    read = {where.topic for where, offset in positions(folder).items() if offset > 0}
    wanted = list(definition.source.topics)
    left_out = [topic for topic in note.topics if topic in read and topic not in wanted]
    if left_out and definition.source.on_loss == "stop":
        raise NotItsCheckpoint(
            f"{', '.join(left_out)} was read until now, and is not among `topics` any more: add it again; or "
            'set on_loss = "continue" in [source] for a run, and what is left of it will not be read'
        )
    for topic in wanted:
        there = cluster.topics.get(topic, "")
        before = note.topics.get(topic, "")
        if topic in read and before and there and before != there:
            raise SourceReplaced(
                f"the topic {topic} was deleted and made again since the checkpoint has read a part of it: "
                "offsets mean other records now. Start a new pipeline with another name and checkpoint"
            )
        former = note.former_topics.get(topic)
        if former is not None and former == there:
            raise NotItsCheckpoint(
                f"{topic} was among `topics` before, and then was not: all of it would be read once more. "
                "Read it by a new pipeline, with another name and checkpoint"
            )
    note.former_topics.update((topic, note.topics[topic]) for topic in left_out)
    note.topics = {topic: cluster.topics.get(topic) or note.topics.get(topic, "") for topic in wanted}


def _look_at_sinks(note: _Note, folder: CheckpointFolder, definition: Definition) -> None:
    done = last_finished(folder)
    last = -1 if done is None else done
    names = _sinks(definition)
    for name in names:
        left = note.former_sinks.pop(name, last)
        if left < last:
            batches = f"batch {last}" if left + 1 == last else f"batches {left + 1} to {last}"
            raise NotItsCheckpoint(
                f"the sink {name} was not in the definition for a while, and would lack {batches} for "
                "ever: give it another `name`, if it shall begin with the next batch"
            )
    note.former_sinks.update((name, last) for name in note.sinks if name not in names)
    note.sinks = names


def _look_at_reading(note: _Note, folder: CheckpointFolder, definition: Definition) -> None:
    """A record must not be good for the dead letters and bad for the sinks: then it were in none."""
    source = definition.source
    reading = hashlib.sha256(f"{source.value}\n{source.schema}".encode()).hexdigest()[:16]
    dead = definition.dead_letters
    if note.reading and note.reading != reading and dead is not None:
        done, begun = last_finished(folder), _begun(folder, dead.name)
        if begun is not None and (done is None or begun > done):
            raise NotItsCheckpoint(
                f"batch {begun} was begun with another `value` or `schema` in [source], and its dead letters "
                "may be written already: finish it with the old definition (gapless pipeline run FILE "
                "--once), then change it"
            )
    note.reading = reading


def _look_at_memory(note: _Note, folder: CheckpointFolder, definition: Definition) -> None:
    """Spark's memory has to be there from the first batch on, and be of one kind."""
    dedup = definition.dedup
    remembered = "" if dedup is None or dedup.by == "identity" else json.dumps(dedup.by)
    if note.remembered not in {None, remembered} and last_finished(folder) is not None:
        raise NotItsCheckpoint(
            f"{definition.at('dedup')}: dedup within a watermark ({note.remembered or 'none until now'}) "
            "is a part of the checkpoint: leave it as it was, or start a new pipeline with another "
            "name and checkpoint"
        )
    note.remembered = remembered


def _sinks(definition: Definition) -> list[str]:
    """Those to which every batch goes: without a way to be unreadable there are no dead letters."""
    dead = definition.dead_letters
    named = [each.name for each in definition.sinks]
    return [*named, dead.name] if dead is not None and definition.source.value != "bytes" else named


def _begun(folder: CheckpointFolder, sink: str) -> int | None:
    """The last batch that was begun in a sink."""
    plan, number = (folder.read(f"sinks/{sink}/{name}") for name in (PLAN_FILE, BEGUN_FILE))
    if plan is not None:
        return int(json.loads(plan)["batch"])
    return None if number is None else int(number)
