"""A checkpoint goes on only with the pipeline, cluster, topics and sinks that it was made with (C8)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from gapless.errors import GaplessError
from gapless.pipeline.belonging import NOTE, Cluster, claim
from gapless.pipeline.definition import Definition
from gapless.pipeline.folder import CheckpointFolder

BEFORE = Cluster("prod", {"orders": "id-1", "more": "id-2"})


class Files:
    """A checkpoint in memory, with Spark's own files beside ours."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        return self.content.get(name)

    def write(self, name: str, data: bytes) -> None:
        self.content[name] = data

    def names(self, folder: str) -> list[str]:
        return [name.removeprefix(f"{folder}/") for name in self.content if name.startswith(f"{folder}/")]

    def finish(self, batch: int, ends: Mapping[str, int]) -> None:
        offsets = {topic: {"0": end} for topic, end in ends.items()}
        self.content[f"../offsets/{batch}"] = b"v1\n{}\n" + json.dumps(offsets).encode()
        self.content[f"../commits/{batch}"] = b"v1\n{}"


def definition(
    topics: tuple[str, ...] = ("orders",),
    sinks: tuple[str, ...] = ("parquet",),
    *,
    name: str = "p",
    source: str = "",
    dead: bool = False,
) -> Definition:
    tables = "".join(f'[[sinks]]\ntype = "parquet"\nname = "{each}"\npath = "{each}"\n' for each in sinks)
    letters = '[dead_letters]\ntype = "parquet"\npath = "dead"\n' if dead else ""
    return Definition.parse(
        f'name = "{name}"\ncheckpoint = "c"\n[source]\nbootstrap = "b:1"\n'
        f"topics = {json.dumps(topics)}\n{source}\n{tables}{letters}",
        "p.toml",
        Path("/tmp"),
    )


def start(files: Files, wanted: Definition, cluster: Cluster = BEFORE) -> None:
    claim(cast("CheckpointFolder", files), wanted, cluster)


@pytest.fixture
def files() -> Files:
    """Of a pipeline that has carried a batch."""
    made = Files()
    start(made, definition(("orders", "more")))
    made.finish(0, {"orders": 10, "more": 5})
    return made


def test_the_same_definition_goes_on(files: Files) -> None:
    before = dict(files.content)
    start(files, definition(("orders", "more")))
    assert files.content == before


def test_a_note_of_an_earlier_version_is_taken_over(files: Files) -> None:
    files.write(NOTE, b'{"name": "p"}')
    start(files, definition(("orders", "more")))
    with pytest.raises(GaplessError, match="other records"):
        start(files, definition(("orders", "more")), Cluster("test", BEFORE.topics))


@pytest.mark.parametrize(
    ("wanted", "cluster", "message"),
    [
        (definition(("orders", "more"), name="q"), BEFORE, "belongs to the pipeline 'p', not to 'q'"),
        (definition(("orders", "more")), Cluster("test", BEFORE.topics), "Kafka cluster prod.* test"),
        (
            definition(("orders", "more")),
            Cluster("prod", {"orders": "id-3", "more": "id-2"}),
            "topic orders was deleted and made again",
        ),
        (definition(("orders",)), BEFORE, "more was read until now.*add it again"),
    ],
)
def test_what_would_mean_other_records_is_refused(
    files: Files, wanted: Definition, cluster: Cluster, message: str
) -> None:
    before = dict(files.content)
    with pytest.raises(GaplessError, match=message) as refused:
        start(files, wanted, cluster)
    assert "\n" not in str(refused.value)
    assert files.content == before


def test_topics_may_be_added_and_clusters_need_not_give_ids(files: Files) -> None:
    start(files, definition(("orders", "more", "third")), Cluster("", {}))
    with pytest.raises(GaplessError, match="made again"):
        start(files, definition(("orders", "more")), Cluster("prod", {"orders": "id-9"}))


def test_a_topic_that_was_given_up_does_not_come_back_from_its_beginning(files: Files) -> None:
    start(files, definition(("orders",), source='on_loss = "continue"'))
    files.finish(1, {"orders": 20})
    with pytest.raises(GaplessError, match="more was among `topics` before"):
        start(files, definition(("orders", "more")))
    start(files, definition(("orders", "more")), Cluster("prod", {"orders": "id-1", "more": "a new one"}))


def test_a_sink_that_was_left_out_of_batches_is_not_taken_for_a_whole_one(files: Files) -> None:
    both = definition(("orders", "more"), ("parquet", "other"))
    start(files, both)
    start(files, definition(("orders", "more")))
    start(files, both)  # no batch went by
    files.finish(1, {"orders": 20, "more": 5})
    start(files, definition(("orders", "more")))
    files.finish(2, {"orders": 30, "more": 5})
    files.finish(3, {"orders": 40, "more": 5})
    with pytest.raises(GaplessError, match=r"sink other .* would lack batches 2 to 3"):
        start(files, both)
    start(files, definition(("orders", "more"), ("parquet", "third")))


def test_dead_letters_that_could_not_come_for_a_while_are_left_out(files: Files) -> None:
    readable = definition(("orders", "more"), source='value = "text"', dead=True)
    start(files, readable)
    start(files, definition(("orders", "more"), dead=True))
    files.finish(1, {"orders": 20, "more": 5})
    with pytest.raises(GaplessError, match=r"sink dead-letters .* would lack batch 1"):
        start(files, readable)


@pytest.mark.parametrize(
    "begun", [{"sinks/dead-letters/begun": b"1"}, {"sinks/dead-letters/plan.json": b'{"batch": 1}'}]
)
def test_a_record_is_not_judged_in_two_ways_in_one_batch(files: Files, begun: dict[str, Any]) -> None:
    """The dead letters have what was no text; what is text but no JSON would be in no sink."""
    text = definition(("orders", "more"), source='value = "text"', dead=True)
    json_now = definition(("orders", "more"), source='value = "json"\nschema = "a INT"', dead=True)
    start(files, text)
    files.content |= begun
    with pytest.raises(GaplessError, match="batch 1 was begun with another `value` or `schema`"):
        start(files, json_now)
    start(files, text)
    files.finish(1, {"orders": 20, "more": 5})
    start(files, json_now)


def test_what_spark_remembers_is_of_one_kind_from_the_beginning(files: Files) -> None:
    within = '[dedup]\nby = "key"\nwatermark = "10 minutes"\n'
    with pytest.raises(GaplessError, match="a part of the checkpoint: leave it as it was"):
        start(files, definition(("orders", "more"), source=within))
    start(files, definition(("orders", "more"), source='[dedup]\nby = "identity"'))
    new = Files()
    start(new, definition(source=within))
    new.finish(0, {"orders": 1})
    start(new, definition(source=within.replace("10", "20")))
    with pytest.raises(GaplessError, match="a part of the checkpoint"):
        start(new, definition(source=within.replace("key", "hash")))


@pytest.mark.parametrize("garbled", [b"", b"{", b"[]", b'"p"', b'{"nome": "p"}', b"\xff"])
def test_a_garbled_note_is_told_in_one_line(files: Files, garbled: bytes) -> None:
    files.write(NOTE, garbled)
    with pytest.raises(
        GaplessError, match=r"gapless/pipeline.json of the checkpoint .* cannot be read"
    ) as told:
        start(files, definition(("orders", "more")))
    assert "\n" not in str(told.value)
