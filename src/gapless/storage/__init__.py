"""The durable log on disk, and its twin in memory."""
