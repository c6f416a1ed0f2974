"""Members of consumer groups as processes of their own, so that they can leave, die and come back.

Whatever client a member is, here it is told the same way: which partitions it has, and what it has read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from gapless.jars import jar_paths
from gapless.java import find_java
from gapless.testing.apache_kafka import TOOLS

from ..clients import Deadline

ROOT = Path(__file__).resolve().parents[3]
HEARTBEAT_MS = 300
PATIENCE_S = 40.0
PYTHON_KINDS = ("confluent-range", "confluent-cooperative", "kafka-python", "aiokafka")
KINDS = (*PYTHON_KINDS, "kcat", "java")
_JVM_OPTIONS = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

Partition = tuple[str, int]


class Member:
    """One member. `partitions` are its own at the moment, `read` are the values that it has processed."""

    def __init__(self, command: Sequence[str | Path], parse: Callable[[Member, str], None]) -> None:
        self.partitions: set[Partition] = set()
        self.read: list[str] = []
        self.words: list[str] = []
        self._parse = parse
        self._changed = threading.Condition()
        self._asked_to_end = False
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        if self._process.stdout is None:
            raise RuntimeError("no standard output")
        for line in self._process.stdout:
            with self._changed:
                self.words.append(line.rstrip())
                self._parse(self, line.rstrip())
                self._changed.notify_all()

    def leave(self) -> None:
        """SIGTERM: it says good-bye to its group."""
        self._asked_to_end = True
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        self._end()

    def die(self) -> None:
        """SIGKILL: the group has to find out."""
        self._asked_to_end = True
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._end()

    @property
    def has_failed(self) -> bool:
        return self._process.poll() is not None and not self._asked_to_end

    def _end(self) -> None:
        self._reader.join(PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self.partitions = set()


def until(what: str, condition: Callable[[], bool], *members: Member) -> None:
    """Wait for something that members do; if it does not come, fail with what they said."""
    deadline = Deadline(what, PATIENCE_S)
    pause = threading.Event()
    try:
        while not condition() and deadline.open():
            if any(member.has_failed for member in members):
                raise TimeoutError
            pause.wait(0.02)
    except TimeoutError:
        said = "\n---\n".join("\n".join(member.words[-15:]) for member in members)
        state = [sorted(member.partitions) for member in members]
        raise AssertionError(f"no {what} within {PATIENCE_S:.0f} s; partitions: {state}\n{said}") from None


def session_ms(instance: str | None) -> int:
    """How long a member may be silent: a static one long enough to be started again on a busy machine."""
    return 3_000 if instance is None else 30_000


class Members:
    """Starts members, and sees that none is left behind."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._java_settings = folder / "consumer.properties"
        self._java_settings.write_text(f"heartbeat.interval.ms={HEARTBEAT_MS}\nfetch.max.wait.ms=50\n")
        self._all: list[Member] = []

    def start(self, kind: str, group: str, topic: str, instance: str | None = None) -> Member:
        if kind == "kcat":
            member = Member(self._kcat(group, topic), _parse_kcat)
        elif kind == "java":
            member = Member(self._java(group, topic, instance), parse_java)
        else:
            command = [sys.executable, "-m", "tests.compat.members.run", kind, self._bootstrap, group, topic]
            member = Member([*command, instance or ""], _parse_python)
        self._all.append(member)
        return member

    def _kcat(self, group: str, topic: str) -> list[str]:
        settings = {
            "session.timeout.ms": session_ms(None),
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 100,
            "fetch.wait.max.ms": 50,
        }
        options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
        return ["kcat", "-b", self._bootstrap, "-E", "-u", *options, "-f", "=%s\n", "-G", group, topic]

    def _java(self, group: str, topic: str, instance: str | None) -> list[str | Path]:
        folder = jar_paths("kafka")[0].parent
        java: list[str | Path] = [find_java().executable, *_JVM_OPTIONS, "-cp", f"{folder}/*"]
        options = ["--group-id", group, "--topic", topic, "--verbose"]
        options += ["--session-timeout", str(session_ms(instance))]
        options += ["--command-config", str(self._java_settings)]
        if instance is not None:
            options += ["--group-instance-id", instance]
        tool = TOOLS["kafka-verifiable-consumer"]
        return [*java, tool, "--bootstrap-server", self._bootstrap, *options]

    def close(self) -> None:
        for member in self._all:
            member.die()


def _parse_python(member: Member, line: str) -> None:
    """Lines that our own member processes print."""
    if not line.startswith("{"):
        return
    event = json.loads(line)
    if "partitions" in event:
        member.partitions = {(topic, number) for topic, number in event["partitions"]}
    member.read += event.get("read", [])


def parse_java(member: Member, line: str) -> None:
    """Events of Kafka's verifiable consumer."""
    if not line.startswith("{"):
        return
    event = json.loads(line)
    places = {(each["topic"], each["partition"]) for each in event.get("partitions", [])}
    if event["name"] == "partitions_assigned":
        member.partitions |= places
    elif event["name"] == "partitions_revoked":
        member.partitions -= places
    elif event["name"] == "record_data":
        member.read.append(event["value"])


def _parse_kcat(member: Member, line: str) -> None:
    """Records begin with `=`; of a rebalance kcat tells on stderr."""
    if line.startswith("="):
        member.read.append(line[1:])
    elif "rebalanced" in line:
        change, _, places = line.partition("): ")[2].partition(": ")
        named = [place.rpartition(" [") for place in places.split(", ") if place]
        changed = {(topic, int(number.rstrip("] "))) for topic, _, number in named}
        if change.startswith("assigned"):
            member.partitions |= changed
        elif change.startswith("revoked"):
            member.partitions -= changed
