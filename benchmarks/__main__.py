"""`python -m benchmarks`: run the programmes; each prints its table, writes JSON, Markdown and a picture."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks import machine, plot, report
from benchmarks.brokers import OURS, PEER
from benchmarks.harness import Harness
from benchmarks.progress import RunProgress
from benchmarks.scenarios import log_size
from benchmarks.scenarios.all import LOG_SIZE, PROGRAMMES, Programme, names
from benchmarks.sizes import FULL, QUICK, Sizes
from gapless.errors import ExitCode, GaplessError, UsageError

RESULTS = Path(__file__).resolve().parent / "results"
QUICK_ROUNDS = 2

EPILOG = """\
A ratio is ours to Apache Kafka's of the same round; targets are for the median of the ratios.
There are three programmes, each with its own report: broker (about a quarter of an hour on two cores),
coordination (groups and transactions, about five minutes) and cluster (three brokers of each, about half an
hour). --only takes their names, and those of their parts. They want an idle machine. A whole programme
writes results/PROGRAMME.*; a quick, partial or lone run writes results/partial-PROGRAMME.* unless --out says
otherwise.
"""


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    try:
        arguments = _parse(argv)
        _run(arguments)
    except GaplessError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("benchmarks: interrupted, nothing was written", file=sys.stderr)
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _run(arguments: argparse.Namespace) -> None:
    if arguments.work is not None:
        if not arguments.work.is_dir():
            raise UsageError(f"--work: there is no folder {arguments.work}")
        tempfile.tempdir = str(arguments.work.resolve())
    sizes: Sizes = QUICK if arguments.quick else FULL
    asked = [programme for programme in PROGRAMMES if programme.chosen(arguments.only)]
    for programme in asked:
        results = run(
            programme,
            sizes,
            rounds=arguments.rounds or (QUICK_ROUNDS if arguments.quick else programme.rounds),
            only=arguments.only,
            with_peer=not arguments.no_peer,
        )
        report.show(results, Console())
        for path in write(results, _out(arguments, programme, several=len(asked) > 1)):
            print(f"written: {path}")


def _out(arguments: argparse.Namespace, programme: Programme, *, several: bool) -> Path:
    """Where the JSON goes. Only a whole run with Apache Kafka replaces the figures that are published."""
    if arguments.out is not None:
        out: Path = arguments.out
        return out.with_stem(f"{out.stem}-{programme.name}") if several else out
    partial = arguments.quick or arguments.no_peer or programme.chosen(arguments.only) != programme.names()
    return RESULTS / f"{'partial-' if partial else ''}{programme.name}.json"


def run(
    programme: Programme, sizes: Sizes, *, rounds: int, only: list[str] | None, with_peer: bool
) -> report.Results:
    """Everything of the programme that was asked for, with progress on stderr."""
    chosen = programme.chosen(only)
    suites = [suite.only(chosen) for suite in programme.suites(sizes)]
    contenders = (OURS, PEER) if with_peer else (OURS,)
    harness = Harness(suites, sizes, rounds, contenders)
    log_size_steps = 3 * len(sizes.log_mb) if LOG_SIZE in chosen else 0
    began_s = time.monotonic()
    with RunProgress(harness.step_count + log_size_steps) as progress:
        harness.run(progress)
        rows = log_size.measure(sizes, rounds, progress) if LOG_SIZE in chosen else []
    settings = {
        "programme": programme.name,
        "rounds": rounds,
        "order": "A B, B A, … one contender at a time, fresh data each",
        "took_s": round(time.monotonic() - began_s),
        "small": sizes != FULL,
        "sizes": asdict(sizes),
        **({"stated": programme.notes} if programme.notes else {}),
    }
    return report.Results(machine.describe(with_peer=with_peer), settings, harness.cells, rows)


def write(results: report.Results, out: Path) -> list[Path]:
    """JSON to `out`, the tables and the picture beside it under the same name; returns what was written."""
    out.parent.mkdir(parents=True, exist_ok=True)
    texts = {out: json.dumps(report.document(results), indent=1, ensure_ascii=False) + "\n"}
    texts[out.with_suffix(".md")] = report.markdown(results)
    picture = plot.draw(results.cells)
    if picture is not None:
        texts[out.with_suffix(".svg")] = picture
    for path, text in texts.items():
        path.write_text(text)
    return list(texts)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="This broker and Apache Kafka, in turn, on the same machine, in the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", choices=names(), metavar="NAME", help=f"some of: {', '.join(names())}"
    )
    rounds = ", ".join(f"{programme.rounds} of {programme.name}" for programme in PROGRAMMES)
    parser.add_argument("--rounds", type=_positive, metavar="N", help=f"rounds of each (default: {rounds})")
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything work?")
    parser.add_argument("--no-peer", action="store_true", help="this broker alone, without Apache Kafka")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the JSON")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where brokers keep their data meanwhile")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rounds")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
