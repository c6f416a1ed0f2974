"""What is measured: one file per family, each a list of steps that share one broker's life."""
