"""The same orders twice, through the same faults: with everyday settings, and with Gapless. Then the verdict.

`scenario.run_demo` plays it and returns what was found; it shows nothing but tells a `Watcher` how it goes.
"""
