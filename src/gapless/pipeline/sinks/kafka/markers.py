"""The markers of a Kafka sink: which share of the source each of its tasks has written.

A marker is an offset of a group of its own, under the ledger topic of the output cluster. Nobody consumes
through such a group: it is a register that a transaction changes together with records. Beside the offset
stands who wrote it: the checkpoint, the batch, and the producer.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from gapless.client.formats import LEDGER_TOPIC, POSITION_PARTITION
from gapless.errors import UsageError
from gapless.pipeline.sinks.kafka.clients import Target

PATIENCE_S = 60.0
"""How long a cluster may be without a leader or a coordinator before we give up."""
_REQUEST_S = 10.0
_RETRY_S = 0.05
_PASSING = frozenset(
    (
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    )
)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
_PREFIX = "gapless.pipeline"
OWNER = "owner"
"""The slot that says whose sink it is. All others end with a number."""


class Marker(NamedTuple):
    """How far a slot is written, and by whom."""

    position: int
    checkpoint: str
    batch: int
    instance: str
    """The producer: whoever finds another one here has been replaced."""
    at_ms: int
    """When it was committed last, be it only to keep it alive."""
    plan: str = ""
    """Of a shuffled batch: which plan of it was written."""

    @property
    def metadata(self) -> str:
        about = {"checkpoint": self.checkpoint, "batch": self.batch, "instance": self.instance}
        return json.dumps({**about, "at_ms": self.at_ms, "plan": self.plan}, separators=(",", ":"))

    @classmethod
    def of(cls, offset: int, metadata: str | None) -> Marker:
        """Somebody may have moved the offset with a tool: then it says nothing about who wrote."""
        try:
            about = json.loads(metadata or "{}")
            return cls(
                offset,
                str(about.get("checkpoint", "")),
                int(about.get("batch", -1)),
                str(about.get("instance", "")),
                int(about.get("at_ms", 0)),
                str(about.get("plan", "")),
            )
        except (ValueError, AttributeError, TypeError):
            return cls(offset, "", -1, "", 0)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def marker_prefix(pipeline: str, sink: str) -> str:
    """What the names of a sink's groups and transactional ids begin with. No other sink's do."""
    for kind, name in (("pipeline", pipeline), ("sink", sink)):
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot name a {kind}: use 1 to 100 letters, digits, dashes or underscores"
            )
    return f"{_PREFIX}.{pipeline}.{sink}."


class Register:
    """Reads one marker. `group` is what librdkafka wants to be told in order to change it."""

    def __init__(self, target: Target, name: str) -> None:
        self.name = name
        self._consumer: Consumer = target.consumer(name)
        self.group: Any = self._consumer.consumer_group_metadata()

    def read(self, patience_s: float = PATIENCE_S) -> Marker | None:
        """The marker; None if there is none. Waits for a transaction that is about to change it."""
        # Not by an AdminClient: librdkafka 2.16 crashes in it when the coordinator has just moved.
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                timeout_s = min(_REQUEST_S, patience_s)
                where = TopicPartition(LEDGER_TOPIC, POSITION_PARTITION)
                [found] = self._consumer.committed([where], timeout=timeout_s)
                if found.error is not None:
                    raise KafkaException(found.error)
                return None if found.offset < 0 else Marker.of(found.offset, found.metadata)
            except KafkaException as error:
                if error.args[0].code() not in _PASSING or time.monotonic() > give_up_at:
                    raise
                time.sleep(_RETRY_S)

    def close(self) -> None:
        self._consumer.close()
