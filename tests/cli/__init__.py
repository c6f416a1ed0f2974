"""The command line, on our broker and on Apache Kafka."""
