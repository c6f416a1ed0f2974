"""The same tests, by every real client, on Apache Kafka and on Gapless: passing on both is the claim.

`pytest tests/compat` runs against one broker of Gapless, `--peer cluster` against three of them,
`--peer apache` against Apache Kafka from its jars, and `--peer HOST:PORT` against brokers that are already
running. The variable GAPLESS_COMPAT_PEER is the default of `--peer`.
"""
