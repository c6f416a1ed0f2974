"""Who is in the cluster, who leads what, and who watches over it.

Begin with `elections` (one partition) and `decisions` (all of them): pure functions from an image to records.
`contact` knows who was heard of, `pause` when this broker must look before it serves, `membership` acts.
"""
