"""`python -m gapless` is the `gapless` command."""

from __future__ import annotations

from gapless.cli import main

if __name__ == "__main__":
    main()
