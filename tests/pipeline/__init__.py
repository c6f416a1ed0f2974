"""From a topic to a table, with a real Spark."""
