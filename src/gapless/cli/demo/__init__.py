"""`gapless demo`: the same orders twice, through the same faults, and the audit's verdict on both."""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.connection import JsonOption, kafka_errors
from gapless.cli.demo.view import TITLES, View
from gapless.cli.group import examples, new_app
from gapless.cli.output import note, say, say_json, say_table, styled
from gapless.errors import ExitCode, GaplessError, UsageError
from gapless.pipeline import require_spark
from gapless.testing.cluster import Cluster

if TYPE_CHECKING:
    from gapless.demo.scenario import Result

app = new_app()

BROKERS = 3
ORDERS, SECONDS, BATCHES = 450_000, 54.0, 6
QUICK_ORDERS, QUICK_SECONDS, QUICK_BATCHES = 20_000, 10.0, 2
FAULTS = ("lost", "duplicated", "reordered")
HOPS = ("producers → topic", "topic → bills (consumer)", "topic → Delta table", "topic → other topic")

EXAMPLES = examples(
    "gapless demo",
    "gapless demo --quick --seed 7",
    "gapless demo --data ./demo --json",
)


@app.command(epilog=EXAMPLES)
def demo(
    quick: Annotated[
        bool, typer.Option("--quick", help=f"{QUICK_ORDERS:,} orders instead of {ORDERS:,}.")
    ] = False,
    orders: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1_000, help="How many to each side, at the usual rate.", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Repeats the faults of a run.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep brokers, tables and logs in this new folder.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """The same orders twice, through the same faults: with everyday settings, and with Gapless.

    Starts three brokers, and on each side two producers, a consumer and a Spark pipeline.
    Loses acknowledgements; kills a leader, producers, consumers and the pipelines' driver.
    Then audits both sides, record by record. The seed chooses which, when and how long.
    The exit code is 1 if Gapless lost, doubled or reordered a record.
    """
    require_spark()
    from gapless.demo.scenario import Plan, run_demo

    usual, seconds, batches = (
        (QUICK_ORDERS, QUICK_SECONDS, QUICK_BATCHES) if quick else (ORDERS, SECONDS, BATCHES)
    )
    seed = secrets.randbelow(100_000) if seed is None else seed
    _end_like_ctrl_c_on(signal.SIGTERM)
    with _folder(data) as folder:
        count = orders or usual
        plan = Plan(folder, seed, count, seconds * count / usual, batches, short=quick)
        with kafka_errors("the demo cannot go on"), View() as view:
            view.line(f"seed {seed}; all is in {folder}")
            with Cluster(BROKERS, folder=folder / "cluster") as cluster:
                result = run_demo(plan, cluster, view)
        _show(result, as_json)
        if not result.clean:
            raise NotClean
    return ExitCode.OK


class NotClean(GaplessError):
    """The verdict."""

    def __init__(self) -> None:
        super().__init__("Gapless has not carried every order once")


def _end_like_ctrl_c_on(number: int) -> None:
    """So that a polite kill leaves no process and no folder behind either."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(number, interrupt)


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    """The user's folder, or one of which only reports are left, unless there is something to look into."""
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
            _leave_reports(folder)


def _leave_reports(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix != ".html":
            path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _show(result: Result, as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "seed": result.plan.seed,
                "orders": result.plan.orders,
                "seconds": round(result.seconds, 1),
                "faults": result.faults,
                "clean": result.clean,
                "sides": {name: _figures(report) for name, report in result.reports.items()},
                "pages": {name: str(page) for name, page in result.pages.items()},
            }
        )
        return
    say("")
    for name, figures in ((name, _figures(report)) for name, report in result.reports.items()):
        rows = [(hop, *counts.values()) for hop, counts in figures.items()]
        say_table((TITLES[name], *next(iter(figures.values()))), rows)
        say("")
    for page in result.pages.values():
        say(f"report: {page}")
    say(_verdict(result))


def _figures(report: dict[str, Any]) -> dict[str, dict[str, int]]:
    """By hop."""
    found = {}
    for title, hop in zip(HOPS, report["hops"], strict=True):
        counts = hop["counts"]
        found[title] = {
            "promised": counts["promised"],
            "present": counts["present"],
            **{fault: counts[fault] for fault in FAULTS},
        }
    return found


def _verdict(result: Result) -> str:
    words = []
    for name, report in result.reports.items():
        to_topic, *to_sinks = _figures(report).values()
        lost = to_topic["lost"] + max(hop["lost"] for hop in to_sinks)
        doubled = max(hop["duplicated"] for hop in (to_topic, *to_sinks))  # a sink has the topic's, too
        style = "bold red" if lost or doubled else "bold green"
        most = "up to " if doubled else ""
        words.append(f"{TITLES[name]}: " + styled(f"{lost:,} orders lost, {most}{doubled:,} doubled", style))
    verdict = "\n".join(words)
    return f"{verdict}\n{len(result.faults)} faults, {result.seconds:.0f} s, seed {result.plan.seed}"
