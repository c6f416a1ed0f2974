"""A broker's settings file: `name=value` lines as in Kafka's server.properties, every one of them checked."""

from __future__ import annotations

from pathlib import Path

from gapless.core.config_keys import InvalidConfig
from gapless.core.config_tables import BROKER_KEYS
from gapless.errors import UsageError


def read_settings(path: Path) -> dict[str, str]:
    """The settings in a file; the first mistake is refused with its line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read {path}: it is not UTF-8 text") from error
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator:
            raise UsageError(f"{path}:{number}: expected name=value, found {text!r}")
        settings[name] = value
        _check(f"{path}:{number}", name, value)
    return settings


def _check(where: str, name: str, value: str) -> None:
    key = BROKER_KEYS.get(name)
    if key is None:
        raise UsageError(f"{where}: unknown setting {name}{_suggestion(name)}")
    try:
        key.parse(value)
    except InvalidConfig as error:
        raise UsageError(f"{where}: {error}") from error


def _suggestion(name: str) -> str:
    from difflib import get_close_matches  # only a mistake needs it, and a start should not pay for it

    near = get_close_matches(name, BROKER_KEYS, n=1)
    return f"; did you mean {near[0]}?" if near else ""
