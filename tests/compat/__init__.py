"""The same tests, by every real client, on Apache Kafka and on our broker: passing on both is the claim.

`pytest tests/compat` runs on our broker; `--peer apache` (or GAPLESS_COMPAT_PEER=apache) on Apache Kafka from
its jars; `--peer HOST:PORT` on a broker that is already running.
"""
