"""`gapless consume`: print the records of a topic. Reads by assignment: joins no group, commits nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, in_words, kafka_errors
from gapless.cli.group import examples, new_app
from gapless.cli.output import note
from gapless.cli.positions import Bounds, Position, ask_bounds, parse_position, resolve
from gapless.cli.records import FIELDS, formatted, json_line, value_line
from gapless.errors import GaplessError, Unreachable, UsageError

SILENCE_S = 30.0  # how long a partition that must have more may stay silent

app = new_app()

EXAMPLES = examples(
    "gapless consume orders",
    "gapless consume orders --from 2026-01-31T12:00 --count 10 --json",
    "gapless consume orders --follow --format '{time} {key}: {value}'",
)


@app.command(epilog=EXAMPLES)
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.")],
    partition: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Only this one; may be repeated.", show_default=False),
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="POSITION", help="beginning, end, an offset or an ISO time.")
    ] = "beginning",
    stop: Annotated[
        str | None,
        typer.Option("--to", metavar="POSITION", help="Stop before it: end, an offset or an ISO time."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Stop after this many.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Do not stop at the end.")] = False,
    template: Annotated[
        str | None,
        typer.Option("--format", metavar="TEXT", help=f"A line with any of {{{'}, {'.join(FIELDS)}}}."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    isolation: Annotated[
        str, typer.Option(metavar="LEVEL", help="read_committed or read_uncommitted.")
    ] = "read_committed",
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> None:
    """Print the records of a topic, up to what is there now, or for ever with --follow.

    Partitions are read side by side: order holds inside each one.
    """
    first = parse_position(start, "--from")
    last = parse_position(stop, "--to") if stop is not None else None
    if as_json and template is not None:
        raise UsageError("--json and --format exclude each other")
    printer = json_line if as_json else formatted(template) if template is not None else value_line
    connection = Connection(bootstrap, client_config)
    consumer = connection.consumer(
        # Without the last two, small records come slowly: the client waits before it refills its queue.
        {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 5},
        {"isolation.level": isolation, "enable.partition.eof": True, "auto.offset.reset": "error"},
    )
    try:
        with kafka_errors(f"cannot read {topic}"):
            partitions = _partitions_of(consumer, topic, partition)
            plan = _plan(consumer, topic, partitions, first, last, follow)
            Reading(consumer, connection.bootstrap, topic, plan, count).run(printer)
    finally:
        consumer.close()


def _partitions_of(consumer: Consumer, topic: str, wanted: list[int] | None) -> list[int]:
    found = consumer.list_topics(topic, timeout=10).topics[topic]
    if found.error is not None:
        raise GaplessError(f"cannot read {topic}: {in_words(found.error)}")
    for number in wanted or ():
        if number not in found.partitions:
            raise UsageError(f"{topic} has no partition {number}: it has 0 to {len(found.partitions) - 1}")
    return sorted(set(wanted) if wanted else found.partitions)


def _plan(
    consumer: Consumer,
    topic: str,
    partitions: list[int],
    first: Position,
    last: Position | None,
    follow: bool,
) -> dict[int, tuple[int, int | None]]:
    """For each partition where to start and, unless it is read for ever, where to stop."""
    bounds = ask_bounds(consumer, topic, partitions)
    starts = resolve(consumer, topic, first, bounds)
    stops: dict[int, int | None] = dict.fromkeys(partitions)
    if last is not None:
        stops.update(resolve(consumer, topic, last, bounds))
    plan: dict[int, tuple[int, int | None]] = {}
    for number in partitions:
        begin, stop = _within(topic, number, starts[number], bounds[number], follow), stops[number]
        if not follow:
            stop = min(stop, bounds[number].end) if stop is not None else bounds[number].end
        if stop is None or begin < stop:
            plan[number] = (begin, stop)
    return plan


def _within(topic: str, partition: int, offset: int, bounds: Bounds, follow: bool) -> int:
    """An offset that can be read; what is skipped for that is said."""
    if offset < bounds.start:
        note(f"gapless: {topic}/{partition} starts at {bounds.start}: what was before it is no longer there")
        return bounds.start
    if offset > bounds.end and follow:
        note(f"gapless: {topic}/{partition} ends at {bounds.end}: following from there")
        return bounds.end
    return offset


class Reading:
    """One pass over the planned partitions."""

    def __init__(
        self,
        consumer: Consumer,
        bootstrap: str,
        topic: str,
        plan: dict[int, tuple[int, int | None]],
        count: int | None,
    ) -> None:
        self._consumer = consumer
        self._bootstrap = bootstrap
        self._topic = topic
        self._stops = {partition: stop for partition, (_, stop) in plan.items()}
        self._starts = {partition: start for partition, (start, _) in plan.items()}
        self._left = count
        self._must_end = all(stop is not None for stop in self._stops.values())

    def run(self, printer: Callable[[Message], bytes]) -> None:
        """Print until every partition has reached its stop, or the count is used up."""
        self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in self._starts.items()])
        out = sys.stdout.buffer
        heard_s = time.monotonic()
        while self._stops and self._left != 0:
            messages = self._consumer.consume(1000, timeout=0.2)
            lines = [printer(message) for message in messages if self._takes(message)]
            if lines:
                out.write(b"".join(lines))
                out.flush()
            if messages:
                heard_s = time.monotonic()
            elif self._must_end and time.monotonic() - heard_s > SILENCE_S:
                raise Unreachable(
                    f"{self._bootstrap} has not answered for {SILENCE_S:.0f} s; stopped reading"
                )

    def _takes(self, message: Message) -> bool:
        """Whether to print it; also notes what it says about its partition's end."""
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or partition not in self._stops or self._left == 0:
            return False
        stop = self._stops[partition]
        error = message.error()
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise GaplessError(f"cannot read {self._topic}/{partition}: {in_words(error)}")
            # The end can lie behind the last record that is shown: markers of transactions take offsets, too.
            if stop is not None and offset >= stop:
                self._finish(partition)
            return False
        if stop is not None and offset + 1 >= stop:
            self._finish(partition)
            if offset >= stop:
                return False
        if self._left is not None:
            self._left -= 1
        return True

    def _finish(self, partition: int) -> None:
        del self._stops[partition]
        self._consumer.pause([TopicPartition(self._topic, partition)])
