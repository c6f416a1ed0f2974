"""librdkafka writes to stderr when a broker goes away. Where that is expected, this logger swallows it."""

from __future__ import annotations

import logging


def quiet_logger() -> logging.Logger:
    """For the property `logger` of confluent-kafka's clients."""
    logger = logging.getLogger("gapless.librdkafka")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
