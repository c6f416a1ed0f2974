"""What records on the direct path are numbered in, their receipts, and where those without a key go.

A lane is a partition of a topic. It gives out sequences and counts what was acknowledged. That comes in their
order but for failures, so a seal needs two numbers of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, Message

from gapless.client.formats import SOURCE_HEADER, source_header
from gapless.client.producing.partitions import STEP_RECORDS, Partitions
from gapless.client.producing.receipts import Receipt, Stream
from gapless.client.records import Headers

if TYPE_CHECKING:
    from gapless.client.producing.direct import DirectSender


class Lane(Stream):
    """A stream that this producer gives sequences to."""

    __slots__ = ("acked", "made_by", "next", "sealed", "sender", "tell")

    def __init__(self, sender: DirectSender, topic: str, partition: int) -> None:
        super().__init__(sender.source, sender.incarnation, topic, partition)
        self.sender = sender
        self.tell = sender.poller.settled
        self.made_by = (SOURCE_HEADER, source_header(sender.source, sender.incarnation))
        self.next = 0
        self.sealed = 0
        self.acked = 0
        """Acknowledged and not yet sealed: from `sealed` up to here. Changed by whoever polls."""


class DirectReceipt(Receipt):
    """Keeps what librdkafka's report of a failure does not tell: headers and timestamp.

    `send` fills it in: one is made for each record, and a constructor of our own would take twice as long.
    """

    __slots__ = ("headers", "timestamp_ms")
    stream: Lane
    headers: Headers | None
    timestamp_ms: int | None

    __init__ = object.__init__

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """By librdkafka, when it knows. Only one thread at a time is here.

        The receipt itself is the callback: a method of it would be one more object for each record.
        """
        lane = self.stream
        if error is not None:
            lane.sender.failed(self, error, message)
            return
        if self.sequence != lane.acked:
            lane.sender.note_acked(lane)
            lane.sealed = self.sequence
        lane.acked = self.sequence + 1
        self._outcome = True
        if self._waiters is not None:
            self._wake()
        if self.on_delivery is not None:
            lane.tell(self)

    def _refuse_in_callback(self, what: str) -> None:
        self.stream.sender.refuse_in_callback(what)


class Lanes(dict[tuple[str, int], Lane]):
    """By topic and partition; made when first asked for, from any thread."""

    def __init__(self, sender: DirectSender) -> None:
        super().__init__()
        self._sender = sender

    def __missing__(self, place: tuple[str, int]) -> Lane:
        return self.setdefault(place, Lane(self._sender, *place))


class Runs(dict[str, Lane]):
    """By topic: where its records without a key go at the moment."""

    def __init__(self, lanes: Lanes, partitions: Partitions) -> None:
        super().__init__()
        self._lanes = lanes
        self._partitions = partitions

    def __missing__(self, topic: str) -> Lane:
        lane = self[topic] = self._lanes[topic, self._partitions.go_on(topic)]
        return lane

    def look(self, lane: Lane, records: int = STEP_RECORDS) -> None:
        """After so many records: is the run over, if they were of one?"""
        topic = lane.topic
        if self.get(topic) is lane:
            partition = self._partitions.go_on(topic, records)
            if partition != lane.partition:
                self[topic] = self._lanes[topic, partition]
