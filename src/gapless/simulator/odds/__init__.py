"""The loss rate of a configuration as a number.

`kinds.py` lists what goes wrong, and how often it is assumed to; `stage.py` lets it go wrong once, under
steady load, and counts what is lost and what is doubled; `measuring.py` does so for many seeds; `estimate.py`
multiplies by the rates. What is assumed, what is measured and what is left out: `docs/odds.md`.
"""
