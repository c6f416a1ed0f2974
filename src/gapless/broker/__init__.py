"""The process: asyncio and real files around the core."""
