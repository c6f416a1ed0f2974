"""Bytes to messages and back: Kafka's wire format, with no state and nothing else of ours imported."""
