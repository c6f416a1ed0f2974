"""What brokers agree on: one list of metadata records, and who of them is alive.

`port` says what is needed; `sqlite` does it for brokers of one machine, `zookeeper` for several.
"""
