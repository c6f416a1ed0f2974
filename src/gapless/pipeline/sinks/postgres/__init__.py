"""The sink into a PostgreSQL table: rows and marker of a task commit together, and rows travel by COPY.

    sink = PostgresSink("postgresql://billing@db/orders", "bills", key=["id"], latest_by="changed")

Needs the extra `postgres`: pip install 'gapless[postgres]'.
"""

from __future__ import annotations

from gapless.pipeline.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
