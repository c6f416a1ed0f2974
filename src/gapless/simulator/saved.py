"""Cases in files: what was found once, shrunk or not, is played again from there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from gapless.errors import UsageError
from gapless.simulator.case import Case
from gapless.simulator.mutants import MUTANTS
from gapless.simulator.validating import Implausible, validate

FORMAT = 1


class Saved(NamedTuple):
    """A case, and the mistake that it was played with, if any."""

    case: Case
    mutant: str | None = None


def save(path: Path, saved: Saved) -> None:
    """Write a case to a file."""
    values = {"format": FORMAT, "mutant": saved.mutant, "case": json.loads(saved.case.to_json())}
    try:
        path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def check_writable(path: Path | None) -> None:
    """Refuse a place where nothing can be written before anything is played."""
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise UsageError(f"cannot write {path}: name a file in a folder that is there")


def load(path: Path) -> Saved:
    """Read what `save` wrote."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise UsageError(f"{path} has format {values['format']}, and only {FORMAT} is known here")
        saved = Saved(Case.from_values(values["case"]), values["mutant"])
        if saved.mutant is not None and saved.mutant not in MUTANTS:
            raise UsageError(f"{path} was made with the mutant {saved.mutant}, which is not there any more")
        validate(saved.case)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except Implausible as why:
        raise UsageError(f"{path} holds a case that cannot be played: {why}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{path} holds no case: write one with gapless simulate --save FILE") from None
    return saved
