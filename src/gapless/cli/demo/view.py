"""How a demo goes: a picture that moves in a terminal, a line now and then when piped. Both on stderr."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from gapless.cli.progress import Lines
from gapless.demo.faults import Kind
from gapless.demo.sides import EVERYDAY, GAPLESS

if TYPE_CHECKING:
    from gapless.demo.scenario import Snapshot

TITLES = {EVERYDAY: "everyday settings", GAPLESS: "Gapless"}
_ROWS = (("acknowledged", "acknowledged"), ("billed", "billed"), ("in the table", "carried"))
FAULTS = len(Kind)
_LABEL, _GAP, _COUNT, _RATE = 14, 3, 8, 7
_BESIDE_BARS = 2 + _LABEL + _GAP + 2 * (1 + _COUNT + 1 + _RATE + 2 + _GAP)
_SHORTEST_BAR, _LONGEST_BAR = 4, 28
_LINE_EVERY_S = 5.0
_RATE_OVER_S = 3.0


class View(Lines):
    """What was said stays above; below it, how far each side is, at what rate, and how the brokers are."""

    def __init__(self) -> None:
        super().__init__(_rich_live)
        self._line_s = 0.0
        self._earlier: list[Snapshot] = []

    def look(self, snapshot: Snapshot) -> None:
        recent = [each for each in self._earlier if snapshot.seconds - each.seconds < _RATE_OVER_S]
        self._earlier = [*recent, snapshot]
        if self._live is not None:
            self._live.update(_picture(snapshot, self._earlier[0], self._live.console.width))
        elif time.monotonic() - self._line_s >= _LINE_EVERY_S:
            self._line_s = time.monotonic()
            self.line(_line(snapshot))

    def fault(self, text: str) -> None:
        """Something was broken on purpose."""
        self.line(f"[bold red]✗[/] {text}" if self._live is not None else text)


def _line(snapshot: Snapshot) -> str:
    if not any(each.acknowledged for each in snapshot.sides.values()):
        return snapshot.phase
    sides = (
        f"{name} {side.acknowledged:,} acknowledged, {side.billed:,} billed, {side.carried:,} in the table"
        for name, side in snapshot.sides.items()
    )
    return "; ".join((snapshot.phase, *sides))


def _rich_live() -> Any:
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), refresh_per_second=5, transient=True)


def _picture(snapshot: Snapshot, earlier: Snapshot, width: int) -> Any:
    """As wide as there is room: in a narrow terminal the bars are short, and nothing else is left out."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    brokers = Text("brokers  ")
    for number, is_running in snapshot.brokers.items():
        brokers.append(
            f"● {number}  " if is_running else f"✗ {number}  ", "green" if is_running else "bold red"
        )
    bar_width = min(max((width - _BESIDE_BARS) // len(snapshot.sides), _SHORTEST_BAR), _LONGEST_BAR)
    sides = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    sides.add_column("", width=_LABEL)
    for name in snapshot.sides:
        sides.add_column(TITLES[name], no_wrap=True)
    for title, what in _ROWS:
        sides.add_row(title, *(_bar(snapshot, earlier, name, what, bar_width) for name in snapshot.sides))
    sides.add_row("in sync", *(_in_sync(snapshot, name) for name in snapshot.sides))
    plan = snapshot.plan
    facts = (
        snapshot.phase,
        f"{snapshot.faults} of {FAULTS} faults",
        f"{snapshot.seconds:.0f} s",
        f"seed {plan.seed}",
    )
    return Padding(Group(brokers, Text(""), sides, Text(""), Text(" · ".join(facts), "dim")), (1, 0, 0, 2))


def _bar(snapshot: Snapshot, earlier: Snapshot, side: str, what: str, width: int) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    orders = snapshot.plan.orders
    now, before = getattr(snapshot.sides[side], what), getattr(earlier.sides[side], what)
    took_s = snapshot.seconds - earlier.seconds
    rate = max(now - before, 0) / took_s if took_s > 0 else 0
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_row(
        ProgressBar(orders, min(now, orders), width=width),
        # More than there are: some are there twice.
        Text(f"{now:>{_COUNT},}", "bold red" if now > orders else ""),
        Text(f"{rate:>{_RATE},.0f}/s", "dim"),
    )
    return line


def _in_sync(snapshot: Snapshot, side: str) -> Any:
    """Of each partition: how many replicas are, and a line where nobody leads."""
    from rich.text import Text

    line = Text()
    for leader, count in snapshot.in_sync.get(f"{side}-orders", []):
        style = "green" if count == len(snapshot.brokers) else "yellow" if count > 1 else "bold red"
        line.append(f"{count} " if leader is not None else "– ", style if leader is not None else "bold red")
    return line.append(f"of {len(snapshot.brokers)}", "dim") if line else line
