"""What the wire format promises: the same bytes as Kafka, and no harm from anybody else's."""
