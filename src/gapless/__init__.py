"""Gapless: a Kafka-compatible message pipeline that loses nothing, repeats nothing, and can prove it."""

__version__ = "0.1.0"
