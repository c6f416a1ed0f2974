"""The typer side of the command line: commands by name, imported when used; help; one-line usage errors."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gapless import __version__
from gapless.cli.registry import COMMANDS
from gapless.errors import UsageError

# `errors.ExitCode`, for people. `\b` keeps the lines as they are.
EXIT_CODES = """

\b
Exit codes: 0 done; 1 failed, or found something; 2 wrong usage;
3 cannot reach the cluster; 130 interrupted."""


def new_app(help: str | None = None) -> typer.Typer:  # noqa: A002 -- typer's own name for it
    """An app for one command module: help with colours and boxes in a terminal, plain text when piped."""
    return typer.Typer(
        help=help,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def examples(*lines: str) -> str:
    """The end of a command's help. `\\b` keeps the lines as they are."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


class LazyGroup(TyperGroup):
    """Knows its commands from the registry and imports a command's module only when that command runs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, command in COMMANDS.items():  # for the list in the help, and to suggest the nearest name
            self.add_command(TyperCommand(name=name, help=command.summary))
        self._listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS or self._listing or COMMANDS[cmd_name].starts_at_once:
            return super().get_command(ctx, cmd_name)
        command = get_command(import_module(COMMANDS[cmd_name].module).app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        super().format_help(ctx, formatter)


app = new_app("A Kafka-compatible message pipeline that loses nothing, repeats nothing, and can prove it.")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gapless {__version__}")
        raise typer.Exit


@app.callback(
    cls=LazyGroup,
    epilog=examples(
        "gapless up --data ./data", "gapless produce orders < orders.txt", "gapless COMMAND --help"
    )
    + EXIT_CODES,
)
def gapless(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A Kafka-compatible message pipeline that loses nothing, repeats nothing, and can prove it."""


def run_commands(argv: list[str]) -> int:
    """Parse and run; a usage error becomes our one-line `UsageError`."""
    group = get_command(app)
    try:
        with group.make_context("gapless", argv or ["--help"]) as context:
            return int(group.invoke(context) or 0)
    except typer.Exit as leaving:
        return leaving.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        raise UsageError(_in_one_line(error)) from None


def _in_one_line(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".")
    hint = f" (try: {context.command_path} --help)" if context is not None else ""
    return " ".join(f"{message}{hint}".split())
