"""A seed is a run, bit for bit: in any process, however its messages travel, and from a file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gapless.errors import UsageError
from gapless.simulator.case import Case
from gapless.simulator.cases import make_case
from gapless.simulator.profiles import PROFILES, Profile
from gapless.simulator.run import play, play_scene
from gapless.simulator.saved import Saved, load, save
from gapless.simulator.scene import Scene
from gapless.simulator.validating import validate

FOUND = Path(__file__).with_name("found")
SEED = 3


def traced(hash_seed: str, *argv: str) -> bytes:
    """What another process prints of a seed."""
    command = [sys.executable, "-m", "gapless", "simulate", *argv, "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    ran = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=100)
    assert ran.returncode in (0, 1), ran.stderr  # whether it keeps its promises is not asked here
    return ran.stdout


def test_a_seed_gives_the_same_trace_in_every_process(tmp_path: Path) -> None:
    first = traced("1", "--seed", str(SEED))
    assert first == traced("2", "--seed", str(SEED))
    lines = first.decode().splitlines()
    assert len(lines) > 1_000
    assert lines[-1].startswith(f"seed {SEED}, profile everything: ")
    assert any(" > Reply on " in line and "PRODUCE" in line for line in lines)
    assert not [line for line in lines if " at 0x" in line], "an address of memory is no part of a run"

    save(tmp_path / "case.json", Saved(make_case(SEED, PROFILES["everything"])))
    assert traced("3", "--case", str(tmp_path / "case.json")) == first


def history_of(case: Case, *, through_bytes: bool) -> tuple[object, ...]:
    scene = Scene(case, lambda world: setattr(world.network, "through_bytes", through_bytes))
    report = play_scene(scene)
    writes = [
        (write.value, write.place, write.offset, write.acknowledged)
        for write in scene.history.writes.values()
    ]
    readings = [(each.consumer, each.place, tuple(each.polled)) for each in scene.history.readings]
    return str(report.violation), report.events, report.virtual_ms, writes, readings


@pytest.mark.parametrize("profile", ["elections", "transactions"])
def test_brokers_that_talk_in_bytes_come_to_the_same_history(profile: str) -> None:
    case = make_case(SEED, PROFILES[profile])
    assert history_of(case, through_bytes=True) == history_of(case, through_bytes=False)


def test_a_case_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    for profile in PROFILES.values():
        case = make_case(7, profile)
        save(file, Saved(case, "early-acknowledgement"))
        assert load(file) == Saved(case, "early-acknowledgement")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no JSON", "holds no case"),
        ("[]", "holds no case"),
        ('{"format": 1, "mutant": null, "case": {"seed": 1}}', "holds no case"),
        ('{"format": 9, "mutant": null, "case": {}}', "has format 9"),
    ],
)
def test_a_file_that_is_no_case_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "case.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        load(file)
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / "missing.json")


def shaped(**wrong: Any) -> str:
    """The file of a case that can be played, but for what is wrong."""
    case = {
        "seed": 1,
        "profile": "by hand",
        "brokers": 3,
        "topics": [{"name": "t", "partitions": 1, "replicas": 3, "configs": {}}],
        "clients": [{"name": "p", "kind": "producer", "options": {}}],
        "steps": [{"at_ms": 0, "what": "send", "arguments": ["p", "t", 0, 1]}],
    }
    return json.dumps({"format": 1, "mutant": None, "case": {**case, **wrong}})


def a_step(what: str, *arguments: Any, at_ms: Any = 0) -> dict[str, Any]:
    return {"steps": [{"at_ms": at_ms, "what": what, "arguments": arguments}]}


def a_client(kind: str, **options: Any) -> dict[str, Any]:
    return {"clients": [{"name": "p", "kind": kind, "options": options}]}


def a_transactional(**wrong: Any) -> dict[str, Any]:
    return a_client("transactional", **{"transactional_id": "x", "newer": True, **wrong})


def a_topic(**wrong: Any) -> dict[str, Any]:
    return {"topics": [{"name": "t", "partitions": 1, "replicas": 3, "configs": {}, **wrong}]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"brokers": 0}, "it has 0 brokers, and not 1 to 9"),
        ({"brokers": True}, "it has True brokers"),
        ({"seed": "x"}, "its seed or its profile is none"),
        ({"settings": {"broker.session.timeout.ms": "soon"}}, "a setting is wrong"),
        ({"internal": {"no.such.setting": "1"}}, "there is no setting no.such.setting of topics"),
        (a_topic(configs={"retention.ms": "long"}), "a setting is wrong"),
        (a_topic(name=""), "has no name"),
        (a_topic(name="t u"), "topic 't u': Topic name 't u' is invalid"),
        (a_topic(name="__consumer_offsets"), "topic '__consumer_offsets' is the coordinators' own"),
        ({"topics": a_topic()["topics"] * 2}, "there are two topics 't'"),
        ({"clients": a_client("producer")["clients"] * 2}, "there are two clients 'p'"),
        ({"clients": [{"name": 5, "kind": "producer", "options": {}}]}, "client 5 has no name"),
        ({"jitter": "no"}, "jitter is 'no', and not true or false"),
        ({"harm_only": [1]}, "harm_only is [1], and not true or false"),
        (a_transactional(transactional_id=""), "the option transactional_id of client 'p' cannot be ''"),
        (a_transactional(timeout_ms=-7), "the option timeout_ms of client 'p' cannot be -7"),
        (a_step("power-cut", 1, 100, 1_000), "kept_percent cannot be 1000"),
        (a_step("delete-records", "t", 0, -1), "percent cannot be -1"),
        (a_step("change-floor", "t", 0), "floor cannot be 0"),
        (a_topic(partitions=0), "has 0 partitions, and not 1 to 100"),
        (a_topic(replicas=4), "has 4 replicas, and there are 3 brokers"),
        (a_client("customer"), "is a 'customer', and there are producer"),
        (a_client("producer", colour=1), "has the option 'colour', which no producer knows"),
        (a_client("producer", idempotent=1), "the option idempotent of client 'p' cannot be 1"),
        (a_client("producer", acks=7), "has other acks than -1, 0 or 1"),
        (a_client("consumer"), "lacks the option committed_only"),
        (
            a_client("member", group="g", topic="x", protocol="classic", committed_only=True),
            "names the topic 'x', which is not there",
        ),
        (
            a_client("member", group="g", topic="t", protocol="x", committed_only=True),
            "has the protocol 'x': ",
        ),
        (a_step("dance"), "step 'dance' at 0 ms: there is no such action or fault"),
        (a_step("send", "p", "t", 0, 1, at_ms=-1), "its time is not 0 to "),
        (a_step("send", "p", "t"), "its arguments do not fit"),
        (a_step("send", "p", "t", "0", 1), "its argument partition cannot be '0'"),
        (a_step("send", "nobody", "t", 0, 1), "there is no client 'nobody'"),
        (a_step("send", "p", "x", 0, 1), "there is no topic 'x'"),
        (a_step("send", "p", "t", 7, 1), "t has no partition 7"),
        (a_step("send", "p", "t", 0, 0), "0 is no number of records"),
        (a_step("transact", "p", [["t", 0]], True), "cannot be written"),
        (a_step("crash", 9, 100), "there is no broker 9"),
        (a_step("crash", "king of t", 100), "'king of t' is no broker and no role"),
        (a_step("crash", "leader t 5", 100), "t has no partition 5"),
        (a_step("crash", 1, -100), "cannot be -100"),
        (a_step("reassign", "t", 0, [], 0), "there are no replicas"),
    ],
)
def test_a_case_that_cannot_be_played_is_refused_with_the_reason(
    tmp_path: Path, wrong: dict[str, Any], says: str
) -> None:
    file = tmp_path / "case.json"
    file.write_text(shaped())
    assert play(load(file).case).violation is None
    file.write_text(shaped(**wrong))
    with pytest.raises(UsageError, match=re.escape(says)) as refused:
        load(file)
    assert len(str(refused.value).splitlines()) == 1


def test_a_file_of_a_mutant_that_is_gone_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    save(file, Saved(make_case(1, PROFILES["calm"]), "no-such-mutant"))
    with pytest.raises(UsageError, match="was made with the mutant no-such-mutant"):
        load(file)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_all_that_seeds_make_can_be_played(profile: Profile, seed: int) -> None:
    validate(make_case(seed, profile))


@pytest.mark.parametrize("file", sorted(FOUND.glob("*.json")), ids=lambda file: file.stem)
def test_cases_that_once_broke_a_promise_keep_every_one(file: Path) -> None:
    """As they were found, whatever their seeds make by now; `found/README.md` says what was wrong."""
    assert play(load(file).case).violation is None
