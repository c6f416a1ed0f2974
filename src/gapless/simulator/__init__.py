"""The rules of the cluster in a world of their own: one thread, virtual time, and all that can go wrong.

`world/` is the shell around the very nodes that a broker runs. `cases.py` draws a case from a seed, and
`scene.py` plays it: `clients/` write and read, `faults/` disturb, and `checkers/` judge. `mutants/` replace
one rule each by a famous mistake, to prove that it would be found.

For people: `campaign.py` plays many seeds, `coverage.py` says what they have exercised, `shrinking.py` makes
a failing case short, and `story.py` tells it.
"""
