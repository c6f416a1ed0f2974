"""`python -m benchmarks`: run the programme, print the table, write JSON, Markdown and a picture."""

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
from benchmarks.scenarios import all as programme
from benchmarks.scenarios import log_size
from benchmarks.sizes import FULL, QUICK, Sizes
from gapless.errors import ExitCode, GaplessError, UsageError

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS = 5
QUICK_ROUNDS = 2

EPILOG = """\
A ratio is ours to Apache Kafka's of the same round; targets are for the median of the ratios.
The full run takes about a quarter of an hour on two cores and wants an idle machine. It writes
results/broker.*; a quick, partial or lone run writes results/partial.* unless --out says otherwise.
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
    results = run(
        sizes,
        rounds=arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS),
        only=arguments.only,
        with_peer=not arguments.no_peer,
    )
    report.show(results, Console())
    whole = not (arguments.quick or arguments.only or arguments.no_peer)
    out = arguments.out or RESULTS / ("broker.json" if whole else "partial.json")
    for path in write(results, out):
        print(f"written: {path}")


def run(sizes: Sizes, *, rounds: int, only: list[str] | None, with_peer: bool) -> report.Results:
    """Everything that was asked for, with progress on stderr."""
    suites = programme.suites(sizes)
    if only:
        suites = [suite.only(only) for suite in suites]
    contenders = (OURS, PEER) if with_peer else (OURS,)
    harness = Harness(suites, sizes, rounds, contenders)
    log_size_too = not only or programme.LOG_SIZE in only
    log_size_steps = 3 * len(sizes.log_mb) if log_size_too else 0
    began_s = time.monotonic()
    with RunProgress(harness.step_count + log_size_steps) as progress:
        harness.run(progress)
        rows = log_size.measure(sizes, rounds, progress) if log_size_too else []
    settings = {
        "rounds": rounds,
        "order": "A B, B A, … one broker at a time, fresh data each",
        "took_s": round(time.monotonic() - began_s),
        "small": sizes != FULL,
        "sizes": asdict(sizes),
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
    names = programme.names(FULL)
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", help=f"some of: {', '.join(names)}"
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help=f"rounds of each (default: {ROUNDS})")
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
