"""The exactly-once Kafka sink, through crashes of all kinds."""
