"""Copies on several brokers: what a leader knows of its followers, and how a follower follows."""
