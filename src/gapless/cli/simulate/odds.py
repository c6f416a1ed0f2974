"""`gapless simulate odds`: what a configuration loses and doubles, as a number."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gapless.cli.connection import JsonOption
from gapless.cli.group import examples
from gapless.cli.progress import Screen
from gapless.errors import ExitCode, UsageError
from gapless.simulator.odds.configuration import USUAL, Acks, Configuration, FlushPolicy

PLAYS, TABLE_PLAYS = 30, 15
SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "y": 365.25 * 86_400}
NEVER = "never"
LEAST_S, MOST_S = 0.001, 1_000_000 * SECONDS["y"]
"""Virtual time has milliseconds; and no fault is rarer than that."""
SHOWN = 40
LEAST_RATE, MOST_RATE = 1e-9, 1e12
_CHOICES = {
    "acks": "--acks",
    "replicas": "--rf",
    "min_insync": "--min-insync",
    "flush": "--flush",
    "idempotence": "--idempotence",
    "unclean": "--unclean",
}

EXAMPLES = examples(
    "gapless simulate odds --acks 1",
    "gapless simulate odds --acks all --min-insync 2 --mtbf crash=7d,disk=never --rate 200/s",
    "gapless simulate odds --table --plot odds.svg",
)


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


class AfterCrash(StrEnum):
    """What an application does that starts again."""

    RESEND = "resend"
    FORGET = "forget"


def odds(
    context: typer.Context,
    acks: Annotated[Acks, typer.Option(help="After how many copies a record is acknowledged.")] = Acks.ALL,
    replicas: Annotated[int, typer.Option("--rf", metavar="N", help="Replication factor, 1 to 3.")] = 3,
    min_insync: Annotated[int, typer.Option(metavar="N", help="min.insync.replicas.")] = 1,
    flush: Annotated[FlushPolicy, typer.Option(help="When a record is on disk.")] = FlushPolicy.PAGE_CACHE,
    idempotence: Annotated[
        Switch | None, typer.Option(help="Of the producers.", show_default="on with --acks all")
    ] = None,
    unclean: Annotated[
        Switch, typer.Option(help="Whether a replica out of sync may lead (unclean.leader.election.enable).")
    ] = Switch.OFF,
    table: Annotated[bool, typer.Option("--table", help="The usual configurations instead of one.")] = False,
    mtbf: Annotated[
        str | None,
        typer.Option(
            metavar="FAULT=TIME,...",
            help="Once in which time each fault comes: 90s, 12h, 30d, 2y, never. See docs/odds.md.",
            show_default="crash=30d,power=1y,...",
        ),
    ] = None,
    rate: Annotated[
        str, typer.Option(metavar="N/s", help="Records per second, of all partitions.")
    ] = "1000/s",
    linger: Annotated[
        int, typer.Option(metavar="MS", min=1, max=50, help="How often a producer sends a batch.")
    ] = 5,
    latency: Annotated[int, typer.Option(metavar="MS", min=1, max=20, help="Of the network, one way.")] = 1,
    writeback: Annotated[
        str, typer.Option(metavar="TIME", help="How often the system writes its page cache to disk.")
    ] = "30s",
    retention: Annotated[str, typer.Option(metavar="TIME", help="How much a log holds.")] = "7d",
    after_crash: Annotated[
        AfterCrash, typer.Option(help="What a producer's application does with what was not acknowledged.")
    ] = AfterCrash.RESEND,
    plays: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=5,
            help="How often each fault is played.",
            show_default=f"{PLAYS}, or {TABLE_PLAYS} with --table",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Repeats a measurement.")] = 1,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Processes.", show_default="one for each core"),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it: .svg or .html.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Measure what faults lose and double in a configuration, and multiply by how often they come.

    Lets each fault strike many times under load, and counts what was acknowledged and is gone, and what
    is stored more than once. Prints both per million records, with intervals of 95 %.
    """
    from gapless.cli.simulate.odds_showing import Answer, check_plot, save_plot, show
    from gapless.simulator.odds.estimate import estimate
    from gapless.simulator.odds.measuring import measure
    from gapless.simulator.odds.model import Model

    if table:
        _refuse_choices(context)
    is_idempotent = acks is Acks.ALL if idempotence is None else idempotence is Switch.ON
    chosen = Configuration(acks, replicas, min_insync, flush, is_idempotent, unclean is Switch.ON)
    configurations = USUAL if table else (chosen,)
    times = _times(mtbf)
    model = Model(
        linger,
        latency,
        round(1_000 * _seconds(writeback, "--writeback")),
        round(1_000 * _seconds(retention, "--retention")),
        after_crash is AfterCrash.RESEND,
    )
    per_second = _rate(rate)
    check_plot(plot)
    count = plays or (TABLE_PLAYS if table else PLAYS)
    with Screen() as screen:
        total = count * len(times) * len(configurations)
        samples = measure(
            configurations,
            times,
            model,
            plays=count,
            seed=seed,
            workers=workers or len(os.sched_getaffinity(0)),
            progress=screen.bar("plays", total),
        )
    found = [
        estimate(configuration, each, times, model, seed)
        for configuration, each in zip(configurations, samples, strict=True)
    ]
    answer = Answer(found, times, model, per_second, count, seed, is_table=table)
    show(answer, as_json=as_json)
    if plot is not None:
        save_plot(answer, plot)
    return ExitCode.OK


def _refuse_choices(context: typer.Context) -> None:
    for name, option in _CHOICES.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--table shows the usual configurations: leave out {option}, or --table")


def _times(given: str | None) -> dict[str, float]:
    """Once in how many seconds each fault comes; those that never do are left out."""
    from gapless.simulator.odds.kinds import KINDS

    times = {name: kind.mtbf_s for name, kind in KINDS.items()}
    for pair in filter(None, (given or "").split(",")):
        name, equals, time = (part.strip() for part in pair.partition("="))
        if not equals or name not in KINDS:
            raise UsageError(f"--mtbf: {pair!r} is not FAULT=TIME with a fault of {', '.join(KINDS)}")
        if time == NEVER:
            times.pop(name, None)
        else:
            times[name] = _seconds(time, f"--mtbf {name}")
    if not times:
        raise UsageError("--mtbf: if nothing ever goes wrong, there is nothing to measure")
    return times


def _seconds(text: str, option: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdy])", text.strip())
    seconds = float(found[1]) * SECONDS[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"{option}: {_short(text)} is not a time such as 90s, 15m, 12h, 30d or 2y")
    if not LEAST_S <= seconds <= MOST_S:
        raise UsageError(f"{option}: {_short(text)} is not between 0.001s and 1000000y")
    return seconds


def _rate(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/([smhd]))?", text.strip())
    rate = float(found[1]) / SECONDS[found[2] or "s"] if found else 0.0
    if rate <= 0:
        raise UsageError(f"--rate: {_short(text)} is not a rate such as 1000/s or 50/m")
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise UsageError(f"--rate: {_short(text)} is not between {LEAST_RATE:g}/s and {MOST_RATE:g}/s")
    return rate


def _short(text: str) -> str:
    """What was given, cut where it is too long for a line."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
