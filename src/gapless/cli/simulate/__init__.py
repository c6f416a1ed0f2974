"""`gapless simulate`: the command and its options. Each thing that it can do has a file of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gapless.cli.group import examples, new_app
from gapless.cli.simulate import odds
from gapless.errors import UsageError

SEEDS, MUTANT_SEEDS = 500, 2_000
DEFAULT_PROFILE = "everything"

_OF_ONE = {"--mutant", "--trace", "--story", "--shrink", "--save", "--json"}
TAKES = {
    "--list": {"--json"},
    "--mutants": {"--seeds", "--first", "--workers", "--json"},
    "--seed": {"--profile", "--fault", *_OF_ONE},
    "--case": _OF_ONE,
    "--mutant": {"--seeds", "--first", "--workers", "--shrink", "--save", "--json"},
    "--seeds": {"--first", "--workers", "--profile", "--fault", "--json"},
}
"""What can be asked for, in the order of asking, and the options that mean something to it."""

HELP = """Let the brokers' own rules meet every fault: in virtual time, from a seed, every promise checked.

Plays many seeds and names those that break a promise, with the command that plays each again. A single
seed that fails is shrunk to the shortest case that still fails, and told as a story. A seed gives the
same run, bit for bit, on any machine.

The exit code is 0 if every promise was kept, and 1 if one was broken. With --mutant or --mutants it
is the other way round: 0 if every mistake was found.
"""

app = new_app()


@app.callback(
    invoke_without_command=True,
    help=HELP,
    epilog=examples(
        "gapless simulate --seeds 10000 --workers 2",
        "gapless simulate --seed 4711 --profile elections",
        "gapless simulate --profile calm --fault power-cut=2 --fault crash=0.5",
        "gapless simulate --seed 4711 --trace > trace.txt",
        "gapless simulate --mutant truncate-to-hw --save case.json",
        "gapless simulate --case case.json --story",
        "gapless simulate --mutants",
        "gapless simulate --list",
        "gapless simulate odds --acks 1",
    ),
)
def simulate(
    context: typer.Context,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            metavar="N",
            min=1,
            help="How many to play.",
            show_default=f"{SEEDS}; at most {MUTANT_SEEDS} for a mutant",
        ),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option("--first", metavar="N", min=0, help="The first of these seeds.", show_default="0"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, help="Processes.", show_default="one for each core"),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="Which clients and faults: see --list.",
            show_default=DEFAULT_PROFILE,
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="NAME=RATE",
            help="How often a fault comes in a run, on average, if not as the profile says. Repeatable.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", min=0, help="Play this one alone.", show_default=False),
    ] = None,
    case: Annotated[
        Path | None,
        typer.Option("--case", metavar="FILE", help="Play the case in this file.", show_default=False),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed or --case: print every event and effect.")
    ] = False,
    story: Annotated[
        bool, typer.Option("--story", help="With --seed or --case: tell all that happens, found or not.")
    ] = False,
    shrinking: Annotated[
        bool | None,
        typer.Option(
            "--shrink/--no-shrink",
            help="Look for the shortest case that fails in the same way.",
            show_default="yes, but for --case",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write the case, shrunk, to a file.", show_default=False),
    ] = None,
    mutant: Annotated[
        str | None,
        typer.Option(
            "--mutant",
            metavar="NAME",
            help="Make a famous mistake, and show that it is found: see --list.",
            show_default=False,
        ),
    ] = None,
    mutants: Annotated[bool, typer.Option("--mutants", help="Look for all of them: a table.")] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="Profiles, faults, promises and mutants, with their meanings.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> int:
    """See `HELP`."""
    if context.invoked_subcommand is not None:
        return 0
    given = {
        "--list": listing,
        "--mutants": mutants,
        "--seed": seed is not None,
        "--case": case is not None,
        "--mutant": mutant is not None,
        "--seeds": seeds is not None,
        "--first": first is not None,
        "--workers": workers is not None,
        "--profile": profile is not None,
        "--fault": bool(faults),
        "--trace": trace,
        "--story": story,
        "--shrink": shrinking is not None,
        "--save": save is not None,
        "--json": as_json,
    }
    mode = _mode({name for name, is_given in given.items() if is_given})
    start, processes = first or 0, workers or _cores()
    match mode:
        case "--list":
            from gapless.cli.simulate.listing import show_list

            return show_list(as_json=as_json)
        case "--mutants":
            from gapless.cli.simulate.hunts import hunt_all

            return hunt_all(range(start, start + (seeds or MUTANT_SEEDS)), processes, as_json=as_json)
        case "--seed" | "--case":
            from gapless.cli.simulate.names import Asked
            from gapless.cli.simulate.one import One

            asked = Asked(profile or DEFAULT_PROFILE, tuple(faults or ()))
            return One(seed, case, asked, mutant, shrinking, save, as_json).play(trace=trace, story=story)
        case "--mutant" if mutant is not None:
            from gapless.cli.simulate.hunts import Hunt

            return Hunt(mutant, first, seeds or MUTANT_SEEDS, processes, save, as_json).go(
                shrinking=shrinking is not False
            )
        case _:
            from gapless.cli.simulate.names import Asked
            from gapless.cli.simulate.seeds import play_many

            asked = Asked(profile or DEFAULT_PROFILE, tuple(faults or ()))
            seeds_to_play = range(start, start + (seeds or SEEDS))
            return play_many(asked, seeds_to_play, processes, as_json=as_json)


app.command("odds", epilog=odds.EXAMPLES)(odds.odds)


def _mode(given: set[str]) -> str:
    """What is asked for; options that mean nothing to it are refused."""
    mode = next((mode for mode in TAKES if mode in given), "--seeds")
    for name in sorted(given - {mode} - TAKES[mode]):
        takers = " or ".join(other for other in TAKES if name in TAKES[other]) or "no other option"
        raise UsageError(f"{name} does not go with {mode}, it goes with {takers}")
    if {"--trace", "--story"} <= given or {"--trace", "--json"} <= given:
        raise UsageError("--trace prints lines of its own: leave out --story and --json")
    return mode


def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
