"""Mistakes of clients."""
