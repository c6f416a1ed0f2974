"""Where librdkafka's own lines go. What users must know is raised, or told by the logger `gapless.client`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

librdkafka_logger = logging.getLogger("gapless.client.librdkafka")
"""For clients that are polled: told to whoever has set up logging, and otherwise not printed."""
librdkafka_logger.addHandler(logging.NullHandler())

_CHOICES = ("logger", "log_level", "debug")


def quiet_unless_told(properties: Mapping[str, Any]) -> dict[str, Any]:
    """For clients that nobody polls, whose lines would go to stderr, or pile up on their way to a logger."""
    chosen = any(name in properties for name in _CHOICES)
    return dict(properties) if chosen else {"log_level": 0, **properties}
