"""The spool: what is stored survives, in order, and nothing else is there."""
