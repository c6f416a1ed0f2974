"""`gapless demo`: show the whole way of a record, and account for each one. The exit code is the verdict."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from gapless.cli.connection import JsonOption, kafka_errors
from gapless.cli.group import examples, new_app
from gapless.cli.output import note, say, say_json, say_table, styled
from gapless.cli.progress import Screen
from gapless.errors import ExitCode, GaplessError, UsageError
from gapless.pipeline import require_spark
from gapless.testing.cluster import Cluster

if TYPE_CHECKING:
    from gapless.demo.scenario import Result
    from gapless.demo.verdict import Account

app = new_app()

BROKERS = 3

EXAMPLES = examples(
    "gapless demo",
    "gapless demo --records 100000 --json",
    "gapless demo --data ./demo",
)


@app.command(epilog=EXAMPLES)
def demo(
    records: Annotated[int, typer.Option(metavar="N", min=100, help="How many records to send.")] = 1_000_000,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep brokers, table and logs in this new folder.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Send a million records, kill a leader in the middle, and account for every one of them.

    Starts three brokers, and a Spark job that carries a topic into a Parquet table.
    Sends numbered records; kills a leader (SIGKILL) at half, starts it again.
    Compares what was acknowledged with the topic and the table, one by one.
    The exit code is 1 if a record was lost, doubled or reordered.
    """
    require_spark()
    from gapless.demo.scenario import Plan, run_demo

    _end_like_ctrl_c_on(signal.SIGTERM)
    with _folder(data) as folder:
        cluster = Cluster(BROKERS, proxy=False, folder=folder / "cluster")
        with kafka_errors("the demo cannot go on"), cluster, Screen() as screen:
            result = run_demo(Plan(folder, records), cluster, screen)
        _show(result, as_json)
        if not result.clean:
            raise NotClean
    return ExitCode.OK


class NotClean(GaplessError):
    """The verdict."""

    def __init__(self) -> None:
        super().__init__("the table is not what was acknowledged")


def _end_like_ctrl_c_on(number: int) -> None:
    """So that a polite kill leaves no process and no folder behind either."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(number, interrupt)


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    """The user's folder; or one that is gone afterwards, unless there is something to look into."""
    if wanted is None:
        folder = Path(tempfile.mkdtemp(prefix="gapless-demo-"))
    elif wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
        raise UsageError(f"{wanted} exists already: name a new folder with --data")
    else:
        wanted.mkdir(parents=True, exist_ok=True)
        folder = wanted.resolve()
    keep = wanted is not None
    try:
        yield folder
    except GaplessError:
        keep = True
        note(f"everything is kept in {folder}")
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _show(result: Result, as_json: bool) -> None:
    if as_json:
        say_json({**asdict(result), "clean": result.clean})
        return
    say("")
    say_table(
        ("", "acknowledged", "there", "lost", "doubled", "reordered", "unacknowledged"),
        [
            ("in the topic", result.acknowledged, *_figures(result.topic)),
            ("in the table", result.acknowledged, *_figures(result.table)),
        ],
    )
    for place, account in (("topic", result.topic), ("table", result.table)):
        for fault, numbers in account.examples.items():
            say(f"{fault} in the {place}, e.g. {', '.join(map(str, numbers))}")
    for reason, times in result.failures.items():
        say(f"{times:,} records were refused: {reason}")
    say(_verdict(result))


def _figures(account: Account) -> tuple[int, int, int, int, int]:
    return account.records, account.lost, account.doubled, account.reordered, account.unacknowledged


def _verdict(result: Result) -> str:
    if not result.clean:
        return styled("NOT CLEAN", "bold red")
    good = styled("Nothing lost, nothing doubled:", "bold green")
    lines = [
        f"{good} all {result.acknowledged:,} acknowledged records are in the table, once each, in order."
    ]
    if result.outage is not None:
        crash = (
            f"{result.outage.acknowledged_before:,} acknowledgements, down for {result.outage.down_s:.1f} s"
        )
        lines.append(f"A leader was killed after {crash}; all this took {result.seconds:.0f} s.")
    return "\n".join(lines)
