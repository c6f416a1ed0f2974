"""This broker beside Apache Kafka, in the same run: `python -m benchmarks`."""
