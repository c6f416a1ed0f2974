"""The whole way of a record, through a crash: sent, killed in the middle, carried by Spark, accounted for.

`scenario.run_demo` plays it and returns what was found; it shows nothing but tells a `Watcher` how it goes.
"""
