"""The `gapless` command: one file per command."""
