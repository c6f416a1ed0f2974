"""One broker, and the tests' one Spark session."""

from __future__ import annotations

from tests.pipeline.conftest import bootstrap
from tests.pipeline.sinks.postgres.conftest import dsn, postgres

__all__ = ["bootstrap", "dsn", "postgres"]
