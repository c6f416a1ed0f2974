"""`gapless audit`: the command. What it shows, repairs and watches has a file each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gapless.cli.audit.repairing import audit_and_repair
from gapless.cli.audit.showing import show
from gapless.cli.audit.watching import served, watch
from gapless.cli.connection import BootstrapOption, ClientConfigOption, Connection, JsonOption
from gapless.cli.group import examples, new_app
from gapless.cli.output import note, say_json
from gapless.cli.progress import Screen
from gapless.client.durations import seconds
from gapless.client.formats import LEDGER_TOPIC
from gapless.client.spool.contents import unsent
from gapless.errors import ExitCode, GaplessError, UsageError

if TYPE_CHECKING:
    from gapless.audit.auditing import Pending
    from gapless.audit.carried import Matching
    from gapless.audit.findings import Report
    from gapless.audit.tables import SinkSpec

app = new_app()
_DAY_S = 86_400
_EXIT_CODES = """

\b
Exit codes: 0 clean; 1 findings; 2 could not tell, or wrong usage;
3 cannot reach the cluster, or a sink; 130 interrupted."""


class CannotAudit(GaplessError):
    """What keeps an audit from looking at all. Exit code 1 would say that it has found something."""

    exit_code = ExitCode.USAGE


@contextmanager
def _one_is_for_findings() -> Iterator[None]:
    """Spark that is not installed, a spool that cannot be read: nothing was found then."""
    try:
        yield
    except GaplessError as error:
        if error.exit_code is not ExitCode.FAILED:
            raise
        raise CannotAudit(str(error)) from error


@app.command(
    epilog=examples(
        "gapless audit --topic orders",
        "gapless audit --topic orders --sink delta:tables/orders --group gapless.pipeline.clean-orders",
        "gapless audit --topic orders --spool ./spool --json | jq .verdict",
        "gapless audit --topic orders --spool ./spool --repair",
        "gapless audit --topic orders --html report.html",
        "gapless audit --topic orders --watch --until-finding || page-somebody",
        "gapless audit --topic orders --watch --sink kafka:clean --group gapless.pipeline.orders",
    )
    + _EXIT_CODES
)
@_one_is_for_findings()
def audit(
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="Whose records.", show_default=False)
    ],
    ledger: Annotated[
        str, typer.Option("--ledger", metavar="TOPIC", help="Where producers say what was acknowledged.")
    ] = LEDGER_TOPIC,
    spools: Annotated[
        list[Path] | None,
        typer.Option(
            "--spool", metavar="DIR", help="What waits there is pending. Repeatable.", show_default=False
        ),
    ] = None,
    sinks: Annotated[
        list[str] | None,
        typer.Option(
            "--sink",
            metavar="KIND:WHERE",
            help="Where records must be, too: delta:PATH, parquet:PATH, kafka:TOPIC, postgres:URL#TABLE. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="WHAT",
            help="What makes a row of a sink that of a record: offset, identity, key, hash, or SQL over a "
            "record's columns.",
            show_default="offset or identity, as the sink has them",
        ),
    ] = None,
    sink_by: Annotated[
        str | None,
        typer.Option(
            "--sink-by", metavar="SQL", help="The same over a sink's columns.", show_default="as --by"
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="Which records sinks should have.", show_default="all"),
    ] = None,
    one_per_key: Annotated[
        bool, typer.Option("--one-per-key", help="Sinks keep one row of records that are equal by --by.")
    ] = False,
    window: Annotated[
        str | None,
        typer.Option(
            "--window",
            metavar="TIME",
            help="Count records and rows in windows of this length instead.",
            show_default=False,
        ),
    ] = None,
    sink_time: Annotated[
        str | None,
        typer.Option(
            "--sink-time",
            metavar="COLUMN",
            help="The sink's column of the records' time, for --window.",
            show_default=False,
        ),
    ] = None,
    sink_keeps: Annotated[
        str | None,
        typer.Option(
            "--sink-keeps",
            metavar="TIME",
            help="How long sinks keep rows, e.g. 7d: what is older, and not there, has expired.",
            show_default=False,
        ),
    ] = None,
    foreign: Annotated[
        bool,
        typer.Option(
            "--foreign",
            help="Nobody promised anything: compare with sinks; or records by --by; or look for holes.",
        ),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="What this consumer group has not come to is not due in sinks, e.g. gapless.pipeline.NAME.",
            show_default=False,
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Send lost records again from the --spool that still has them.")
    ] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Look again and again, and say what is new, until Ctrl-C.")
    ] = False,
    every_s: Annotated[
        float,
        typer.Option("--every", metavar="SECONDS", help="How often, with --watch.", min=0.1, max=_DAY_S),
    ] = 10.0,
    grace_s: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            help="With --watch and without --group: how long a record may take from the topic to the sinks.",
            min=0,
        ),
    ] = 60.0,
    until_finding: Annotated[
        bool, typer.Option("--until-finding", help="With --watch: end with exit code 1 at the first finding.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            help="With --watch: metrics for Prometheus.",
            show_default=False,
            min=1,
            max=65535,
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a report with plots.", show_default=False),
    ] = None,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="Spark's master.")] = "local[*]",
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = None,
    client_config: ClientConfigOption = None,
) -> int:
    """Did everything arrive, once? Names every record that was lost, doubled or reordered.

    Compares what producers have promised in the ledger with what the topic holds, and that with what sinks
    hold. Reads committed records only, and writes nothing but with --repair.
    """
    from gapless.audit.auditing import Auditor
    from gapless.audit.auditing import audit as run
    from gapless.audit.carried import Matching
    from gapless.audit.following import Follower
    from gapless.audit.page import html
    from gapless.audit.tables import SinkSpec
    from gapless.pipeline.lending import lent
    from gapless.pipeline.properties import client_properties
    from gapless.pipeline.sections import KafkaProperties
    from gapless.pipeline.session import require_spark, spark_session

    specs = [SinkSpec.parse(sink) for sink in sinks or []]
    kept_s = None if sink_keeps is None else seconds(sink_keeps)
    matching = Matching(by, sink_by, where, one_per_key, window, sink_time, kept_s)
    _refuse_contradictions(specs, matching, group, foreign=foreign, watching=watching, repair=repair)
    if repair and (not spools or ledger != LEDGER_TOPIC):
        raise UsageError(f"--repair needs the --spool that has the records, and the ledger {LEDGER_TOPIC}")
    if not watching and (until_finding or metrics_port is not None):
        raise UsageError("--until-finding and --metrics-port go with --watch")
    if page is not None:
        _refuse_what_cannot_be_written(page)
    require_spark()
    connection = Connection(bootstrap, client_config)
    connection.admin()  # raises in time if no broker answers
    own = {key: value for key, value in connection.properties.items() if key != "bootstrap.servers"}
    properties = client_properties(KafkaProperties(every=own))

    def once() -> Report:
        # Spools are looked at first: a record that is sent meanwhile is then there, and not missing.
        pending = _pending(spools or [])
        with _busy(f"reading {topic}"):
            return run(
                spark,
                connection.bootstrap,
                topic,
                ledger=ledger,
                properties=properties,
                pending=pending,
                sinks=specs,
                matching=matching,
                group=group,
                foreign=foreign,
            )

    with ExitStack() as stack:
        metrics = stack.enter_context(served(metrics_port))
        with _busy("starting Spark"):
            spark = stack.enter_context(
                lent(lambda: spark_session("gapless audit", master=master, short_lived=True))
            )
        if watching:
            auditor = Auditor(spark, connection.bootstrap, topic, ledger=ledger, properties=properties)
            follower = stack.enter_context(Follower(auditor, specs, matching, group=group, grace_s=grace_s))
            report = watch(
                lambda: follower.look(_pending(spools or [])),
                metrics,
                every_s=every_s,
                as_json=as_json,
                until_finding=until_finding,
            )
        elif repair:
            address = {**own, "bootstrap.servers": connection.bootstrap}
            report = audit_and_repair(once, spools or [], address)
        else:
            report = once()
    if as_json and not watching:
        say_json(report.as_json())
    elif not watching:
        show(report)
    if page is not None:
        _write_page(page, html(report))
    return int(report.verdict.exit_code)


@contextmanager
def _busy(title: str) -> Iterator[None]:
    with Screen(lines_when_piped=False) as screen, screen.busy(title):
        yield


def _refuse_contradictions(
    sinks: Sequence[SinkSpec],
    matching: Matching,
    group: str | None,
    *,
    foreign: bool,
    watching: bool,
    repair: bool,
) -> None:
    """Options that mean nothing without another, or beside it."""
    of_sinks = (
        matching.sink_by,
        matching.where,
        matching.one_per_key,
        matching.window,
        matching.kept_s,
        group,
    )
    if not sinks and any(of_sinks):
        raise UsageError(
            "--sink-by, --where, --one-per-key, --window, --sink-keeps, --group are about a --sink: name one"
        )
    if not sinks and matching.by in ("offset", "identity"):
        raise UsageError(
            f"--by {matching.by} is about a --sink: name one; without, compare records by key, hash or SQL"
        )
    if (matching.window is None) != (matching.sink_time is None):
        raise UsageError("--window and --sink-time go together")
    if matching.window is not None and (matching.by or matching.sink_by or matching.one_per_key):
        raise UsageError("--window only counts: leave out --by, --sink-by and --one-per-key")
    if watching and (repair or foreign):
        raise UsageError("--watch goes by promises, and sends nothing: leave out --repair and --foreign")
    by_content = matching.by not in (None, "offset", "identity") or matching.sink_by or matching.one_per_key
    if watching and (by_content or matching.window):
        raise UsageError(
            "--watch compares by offset or identity, which stay a few intervals however many there were; "
            "of keys, hashes and windows it would have to remember all: compare by those without --watch"
        )
    if (matching.sink_by or matching.one_per_key) and matching.by in (None, "offset"):
        raise UsageError(
            "--sink-by and --one-per-key go with --by, and by offset they say nothing: name another"
        )
    if repair and foreign:
        raise UsageError("--repair sends what was promised, and with --foreign nothing was")


def _refuse_what_cannot_be_written(path: Path) -> None:
    """Before all is read in vain."""
    if not path.resolve().parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    is_there = path.exists()
    if is_there and not path.is_file() and not path.is_dir():
        return  # a pipe has somebody who waits for one page
    try:
        path.open("ab").close()
        if not is_there:
            path.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _write_page(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    note(f"report: {path}")


def _pending(folders: Iterable[Path]) -> list[Pending]:
    found: list[Pending] = []
    for folder in folders:
        waiting = unsent(folder)
        for incarnation, intervals in waiting.intervals.items():
            found += [(waiting.source, incarnation, each) for each in intervals]
    return found
