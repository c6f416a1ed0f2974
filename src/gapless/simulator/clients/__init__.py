"""Clients in virtual time: producers and consumers that behave as Kafka's do.

They are straight-line processes, and know brokers by requests and answers alone. What they did, and what they
were told, is in the history.
"""
