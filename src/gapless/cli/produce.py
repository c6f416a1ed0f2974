"""`gapless produce`: lines, or numbered records, to a topic, with a receipt for every record."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer
from confluent_kafka import Producer

from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, JsonOption, split_pairs
from gapless.cli.group import examples, new_app
from gapless.cli.output import note, say, say_json, styled
from gapless.cli.progress import Screen
from gapless.cli.sending import Sending, check_topic
from gapless.errors import ExitCode, GaplessError, UsageError

app = new_app()

EXAMPLES = examples(
    "gapless produce orders < orders.txt",
    "echo 'berlin:17.5' | gapless produce weather --key-separator :",
    "gapless produce load --count 1000000 --size 100",
)


class Record(NamedTuple):
    """What one line becomes."""

    key: bytes | None
    value: bytes


@app.command(epilog=EXAMPLES)
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where to send to.")],
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read lines from here instead of stdin.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What is before it in a line is the key.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Goes with every record; may be repeated.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Send to this one only.", show_default=False)
    ] = None,
    acks: Annotated[
        str | None,
        typer.Option(metavar="all|1|0", help="Who must have it before it counts.", show_default="all"),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.", show_default="none"),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Send this many numbered records.", show_default=False),
    ] = None,
    size: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size of each numbered record.")] = 100,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> int:
    """Send each line of stdin (or of a file) as a record, and say how many were acknowledged.

    Idempotent and acks=all unless told otherwise: a retry is never stored twice.
    The exit code is 1 if any record failed.
    """
    if count is not None and (file is not None or key_separator is not None):
        raise UsageError("--count makes its own records: it goes with neither --file nor --key-separator")
    if count is not None and size < len(str(count - 1)):
        raise UsageError(f"--size {size} is too small for the number {count - 1}")
    where: dict[str, Any] = {"headers": list(split_pairs(header, "--header").items())} if header else {}
    if partition is not None:
        where["partition"] = partition
    connection = Connection(bootstrap, client_config)
    with _lines_of(file, count) as lines:
        producer = _producer(connection, acks, compression)
        check_topic(producer, topic, partition)
        sending = Sending(producer, topic)
        started_s = time.monotonic()
        if count is not None:
            work = _send_numbered(sending, count, size, where)
        else:
            work = _send_lines(sending, lines, key_separator, where)
        code = _until_all_receipts(sending, work, count)
    _report(sending, time.monotonic() - started_s, as_json)
    return code


def _producer(connection: Connection, acks: str | None, compression: str | None) -> Producer:
    chosen: dict[str, Any] = {}
    if acks is not None:
        if acks not in {"all", "-1", "1", "0"}:
            raise UsageError(f"--acks is one of all, 1, 0, not {acks}")
        chosen["acks"] = acks
    if compression is not None:
        chosen["compression.type"] = compression
    in_force = acks or connection.properties.get("acks") or connection.properties.get("request.required.acks")
    defaults = {
        "acks": "all",
        "enable.idempotence": in_force in {None, "all", "-1"},
        "linger.ms": 5,
        "queue.buffering.max.messages": 200_000,
    }
    return connection.producer(defaults, chosen)


@contextmanager
def _lines_of(file: Path | None, count: int | None) -> Iterator[BinaryIO]:
    """The input, opened before anything is sent, so that a wrong path costs nothing."""
    if file is None:
        if count is None and sys.stdin.isatty():
            note("one record a line; Ctrl-D ends")
        yield sys.stdin.buffer
        return
    with ExitStack() as opened:
        try:
            stream = opened.enter_context(file.open("rb"))
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from None
        yield stream


def _send_lines(
    sending: Sending, lines: BinaryIO, key_separator: str | None, where: dict[str, Any]
) -> Iterator[None]:
    separator = key_separator.encode() if key_separator is not None else None
    for number, line in enumerate(lines, start=1):
        record = _record_of(line.removesuffix(b"\n"), separator, number)
        sending.send(record.value, key=record.key, **where)
        yield


def _record_of(line: bytes, separator: bytes | None, number: int) -> Record:
    if separator is None:
        return Record(None, line)
    key, found, value = line.partition(separator)
    if not found:
        raise GaplessError(
            f"line {number} has no {separator.decode()!r} between key and value; stopped there"
        )
    return Record(key, value)


def _send_numbered(sending: Sending, count: int, size: int, where: dict[str, Any]) -> Iterator[None]:
    width = len(str(count - 1))
    filler = b"." * (size - width)
    for number in range(count):
        sending.send(b"%0*d" % (width, number) + filler, **where)
        yield


def _until_all_receipts(sending: Sending, work: Iterator[None], count: int | None) -> ExitCode:
    """Do the work and wait for the receipts; Ctrl-C stops the work, a second one stops the waiting."""
    with Screen(lines_when_piped=False) as screen:
        bar = screen.bar("acknowledged", count) if count is not None else None

        def show() -> None:
            if bar is not None:
                bar(sending.acknowledged)

        try:
            for number, _ in enumerate(work):
                if number % 1000 == 0:
                    sending.serve()
                    show()
            sending.wait(show)
            return ExitCode.FAILED if sending.failed else ExitCode.OK
        except KeyboardInterrupt:
            _wait_once_more(sending, show)
            return ExitCode.INTERRUPTED
        except GaplessError as error:
            sending.wait(show)
            note(f"gapless: {error}")
            return error.exit_code


def _wait_once_more(sending: Sending, show: Callable[[], None]) -> None:
    note(f"stopped; waiting for {sending.unknown:,} receipts (Ctrl-C again gives up)")
    try:
        sending.wait(show)
    except KeyboardInterrupt:
        note(f"gave up: {sending.unknown:,} records may or may not have been stored")


def _report(sending: Sending, seconds: float, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "acknowledged": sending.acknowledged,
                "failed": sending.failed,
                "unknown": sending.unknown,
                "seconds": round(seconds, 3),
                "failures": dict(sending.failures),
            }
        )
        return
    rate = f" in {seconds:.1f} s ({sending.acknowledged / max(seconds, 0.001):,.0f} a second)"
    failed = f"{sending.failed:,} failed"
    unknown = f", {sending.unknown:,} unknown" if sending.unknown else ""
    say(
        f"{sending.acknowledged:,} acknowledged, "
        f"{styled(failed, 'bold red') if sending.failed else failed}{unknown}{rate}"
    )
    for reason, times in sending.failures.most_common():
        note(f"gapless: {times:,} × {reason}")
