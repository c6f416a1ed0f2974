"""PySpark: from a topic to a table, against any Kafka."""
