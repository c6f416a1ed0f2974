"""How odds are shown: as text, as JSON, and as a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gapless.cli.output import note, say, say_json, say_table, styled
from gapless.errors import GaplessError, UsageError
from gapless.simulator.odds.estimate import Estimate, Odds, Share
from gapless.simulator.odds.figures import figure, span, told, told_span
from gapless.simulator.odds.model import Model
from gapless.simulator.odds.plot import Row, as_page, draw

DRAWN = (".svg", ".html")


@dataclass(frozen=True, slots=True)
class Answer:
    """All that was found, and from what."""

    odds: list[Odds]
    mtbf_s: dict[str, float]
    model: Model
    rate_per_s: float
    plays: int
    seed: int
    is_table: bool


def show(answer: Answer, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        say_json(_json(answer))
        return
    if answer.is_table:
        _show_table(answer)
    else:
        _show_one(answer)
    say("")
    say(_assumptions(answer))


def _show_one(answer: Answer) -> None:
    (odds,) = answer.odds
    rows = [
        (
            share.kind.name,
            f"{span(1_000 * share.mtbf_s)} per {share.kind.each}",
            told_span(share.lost_ms),
            told_span(share.doubled_ms),
            _with_part(share.lost_ms.times(share.per_million), odds.lost),
            _with_part(share.doubled_ms.times(share.per_million), odds.doubled),
        )
        for share in odds.shares
    ]
    columns = ("fault", "once in", "loses", "doubles", "lost per million", "doubled per million")
    say_table(columns, rows, title=str(odds.configuration))
    say("")
    for name, what in (("lost", odds.lost), ("doubled", odds.doubled)):
        yearly = odds.per_year(what, answer.rate_per_s)
        style = "bold red" if what.seen else "bold green"
        say(
            f"{name}: {styled(told(what), style)} records per million; "
            f"at {figure(answer.rate_per_s)}/s {told(yearly)} a year"
        )
    failed = [share.kind.name for share in odds.shares if share.failed_ms]
    if failed:
        say(f"Producers gave up some records after {', '.join(failed)}, and said so: these are not counted.")


def _with_part(what: Estimate, total: Estimate) -> str:
    """Without the interval: that is for the sum."""
    if not what.seen:
        return told(what)
    percent = 100 * what.mean / total.mean
    return f"{figure(what.mean)}, {'< 1' if percent < 1 else f'{percent:.0f}'} %"


def _show_table(answer: Answer) -> None:
    rows = []
    for odds in answer.odds:
        it = odds.configuration
        rows.append(
            (
                it.acks,
                it.replicas,
                it.min_insync,
                it.flush,
                "on" if it.idempotent else "off",
                "on" if it.unclean else "off",
                told(odds.lost),
                _mostly(odds, "lost"),
                told(odds.doubled),
                _mostly(odds, "doubled"),
            )
        )
    columns = (
        *("acks", "rf", "min.insync", "flush", "idempotence", "unclean"),
        *("lost per million", "by", "doubled per million", "by"),
    )
    say_table(columns, rows)


def _part(share: Share, what: str) -> float:
    window = share.lost_ms if what == "lost" else share.doubled_ms
    return window.mean * share.per_million


def _mostly(odds: Odds, what: str) -> str:
    """The fault that makes up nine tenths of it, or the two that are most of it."""
    parts = {share.kind.name: _part(share, what) for share in odds.shares}
    total, named, sum_ = sum(parts.values()), [], 0.0
    for name, part in sorted(parts.items(), key=lambda item: -item[1]):
        if not part or sum_ >= 0.9 * total:
            break
        named.append(name)
        sum_ += part
    return ", ".join(named[:2]) or "-"


def _assumptions(answer: Answer) -> str:
    model = answer.model
    crash = "sends again" if model.resend else "forgets"
    return (
        f"{answer.plays} plays of each fault, seed {answer.seed}. In brackets: 95 %. "
        "<: never seen, by the rule of three.\n"
        f"Assumed: a batch per partition every {model.linger_ms} ms, {model.latency_ms} ms of network one "
        f"way, page cache on disk within {span(model.writeback_ms)},\n"
        f"{span(model.retention_ms)} in the log; an application that starts again {crash} what was not "
        "acknowledged. More: docs/odds.md."
    )


# -------------------------------------------------------------------------------------------------- JSON


def _json(answer: Answer) -> dict[str, Any]:
    return {
        "seed": answer.seed,
        "plays": answer.plays,
        "rate_per_s": answer.rate_per_s,
        "mtbf_s": answer.mtbf_s,
        "model": asdict(answer.model),
        "configurations": [_odds_json(odds, answer.rate_per_s) for odds in answer.odds],
    }


def _odds_json(odds: Odds, rate_per_s: float) -> dict[str, Any]:
    it = odds.configuration
    return {
        "acks": it.acks,
        "rf": it.replicas,
        "min_insync": it.min_insync,
        "flush": it.flush,
        "idempotence": it.idempotent,
        "unclean": it.unclean,
        "lost_per_million": _estimate_json(odds.lost),
        "doubled_per_million": _estimate_json(odds.doubled),
        "lost_per_year": _estimate_json(odds.per_year(odds.lost, rate_per_s)),
        "doubled_per_year": _estimate_json(odds.per_year(odds.doubled, rate_per_s)),
        "faults": {
            share.kind.name: {
                "per": share.kind.each,
                "mtbf_s": share.mtbf_s,
                "lost_ms": _estimate_json(share.lost_ms),
                "doubled_ms": _estimate_json(share.doubled_ms),
                "failed_ms": share.failed_ms,
                "lost_per_million": _estimate_json(share.lost_ms.times(share.per_million)),
                "doubled_per_million": _estimate_json(share.doubled_ms.times(share.per_million)),
            }
            for share in odds.shares
        },
    }


def _estimate_json(what: Estimate) -> dict[str, float | bool]:
    return {"mean": what.mean, "low": what.low, "high": what.high, "seen": what.seen}


# --------------------------------------------------------------------------------------------------- plot


def check_plot(path: Path | None) -> None:
    """Refuse what cannot be drawn before anything is measured."""
    if path is None:
        return
    if path.suffix not in DRAWN:
        raise UsageError(f"--plot {path}: name a file that ends in {' or '.join(DRAWN)}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")


def save_plot(answer: Answer, path: Path) -> None:
    """Draw it into a file."""
    title = "Expected lost and doubled records per million"
    if answer.is_table:
        rows = [Row(str(odds.configuration), odds.lost, odds.doubled) for odds in answer.odds]
    else:
        (odds,) = answer.odds
        title = f"{title}: {odds.configuration}"
        rows = [Row("all faults", odds.lost, odds.doubled)]
        for share in odds.shares:
            label = f"{share.kind.name}, once in {span(1_000 * share.mtbf_s)} per {share.kind.each}"
            factor = share.per_million
            rows.append(Row(label, share.lost_ms.times(factor), share.doubled_ms.times(factor)))
    often = ", ".join(f"{name} {span(1_000 * seconds)}" for name, seconds in answer.mtbf_s.items())
    svg = draw(title, f"{answer.plays} plays of each fault. Once in: {often}.", rows)
    try:
        path.write_text(svg if path.suffix == ".svg" else as_page(title, svg), encoding="utf-8")
    except OSError as error:
        raise GaplessError(f"cannot write {path}: {error.strerror}") from error
    note(f"drawn: {path}")
