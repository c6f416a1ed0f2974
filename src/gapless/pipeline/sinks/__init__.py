"""Where a pipeline's rows go: each sink takes every batch once."""
