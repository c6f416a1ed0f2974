"""One broker, and the tests' one Spark session."""

from __future__ import annotations

from tests.pipeline.conftest import bootstrap

__all__ = ["bootstrap"]
