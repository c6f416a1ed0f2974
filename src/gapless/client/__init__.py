"""Producers that survive and consumers that act once, on any Kafka."""
