"""Every setting that a topic or a broker knows. Names and defaults are Kafka's."""

from __future__ import annotations

from collections.abc import Iterator

from gapless.core.config_keys import DAY_MS, HOUR_MS, INT_MAX, LONG_MAX, Key, Kind, Synonym


def _table(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}


TOPIC_KEYS = _table(
    Key(
        "cleanup.policy",
        Kind.LIST,
        "delete",
        "What becomes of old segments.",
        choices=("delete", "compact"),
        synonyms=(Synonym("log.cleanup.policy"),),
    ),
    Key(
        "compression.type",
        Kind.STRING,
        "producer",
        "The codec on disk; 'producer' keeps what was sent.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=(Synonym("compression.type"),),
    ),
    Key(
        "delete.retention.ms",
        Kind.LONG,
        str(DAY_MS),
        "How long a tombstone outlives compaction.",
        at_least=0,
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    ),
    Key(
        "file.delete.delay.ms",
        Kind.LONG,
        "60000",
        "How long a dropped file stays on disk.",
        at_least=0,
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    ),
    Key(
        "flush.messages",
        Kind.LONG,
        str(LONG_MAX),
        "fsync after this many records. 1: no record is acknowledged or readable before it is on disk.",
        at_least=1,
        synonyms=(Synonym("log.flush.interval.messages"),),
    ),
    Key(
        "flush.ms",
        Kind.LONG,
        str(LONG_MAX),
        "fsync at least this often while there is something to flush.",
        at_least=0,
        synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    ),
    Key(
        "gapless.replicate.flushed.only",
        Kind.BOOLEAN,
        "false",
        "Whether followers get only what the leader has on disk. Not a setting of Kafka's.",
        synonyms=(Synonym("gapless.replicate.flushed.only"),),
    ),
    Key(
        "index.interval.bytes",
        Kind.INT,
        "4096",
        "Bytes of log between two index entries.",
        at_least=0,
        synonyms=(Synonym("log.index.interval.bytes"),),
    ),
    Key(
        "max.compaction.lag.ms",
        Kind.LONG,
        str(LONG_MAX),
        "The longest that a record may stay uncompacted.",
        at_least=1,
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    Key(
        "max.message.bytes",
        Kind.INT,
        "1048588",
        "The largest batch that is accepted.",
        at_least=0,
        synonyms=(Synonym("message.max.bytes"),),
    ),
    Key(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        str(HOUR_MS),
        "How far in the future a record's time may lie.",
        at_least=0,
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    ),
    Key(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        str(LONG_MAX),
        "How far in the past a record's time may lie.",
        at_least=0,
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    ),
    Key(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whose clock stamps records: producer's or broker's.",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=(Synonym("log.message.timestamp.type"),),
    ),
    Key(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        "0.5",
        "How dirty a log must be before it is compacted.",
        at_least=0,
        at_most=1,
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    Key(
        "min.compaction.lag.ms",
        Kind.LONG,
        "0",
        "The shortest that a record stays uncompacted.",
        at_least=0,
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    Key(
        "min.insync.replicas",
        Kind.INT,
        "1",
        "acks=all is refused when fewer replicas are in sync.",
        at_least=1,
        synonyms=(Synonym("min.insync.replicas"),),
    ),
    Key(
        "retention.bytes",
        Kind.LONG,
        "-1",
        "The size that a partition is kept within; -1: unbounded.",
        synonyms=(Synonym("log.retention.bytes"),),
    ),
    Key(
        "retention.ms",
        Kind.LONG,
        str(7 * DAY_MS),
        "The age after which a segment is dropped; -1: never.",
        at_least=-1,
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", 60_000),
            Synonym("log.retention.hours", HOUR_MS),
        ),
    ),
    Key(
        "segment.bytes",
        Kind.INT,
        str(2**30),
        "The size at which a new segment begins.",
        at_least=1024,
        synonyms=(Synonym("log.segment.bytes"),),
    ),
    Key(
        "segment.ms",
        Kind.LONG,
        str(7 * DAY_MS),
        "The age at which a new segment begins.",
        at_least=1,
        synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    ),
    Key(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        "false",
        "Whether a replica out of sync may lead.",
        synonyms=(Synonym("unclean.leader.election.enable"),),
    ),
)

_OWN_BROKER_KEYS = _table(
    Key("auto.create.topics.enable", Kind.BOOLEAN, "true", "Create a topic when a producer first names it."),
    Key(
        "auto.leader.rebalance.enable",
        Kind.BOOLEAN,
        "true",
        "Whether leadership goes back to a partition's first replica once that is in sync again.",
    ),
    Key(
        "broker.heartbeat.interval.ms",
        Kind.INT,
        "500",
        "How often a broker asks the others whether they are there.",
        at_least=1,
    ),
    Key(
        "broker.session.timeout.ms",
        Kind.INT,
        "3000",
        "A broker that was silent for so long is hung: others lead in its place.",
        at_least=1,
    ),
    Key(
        "controlled.shutdown.timeout.ms",
        Kind.INT,
        "5000",
        "How long a broker that is asked to stop tries to hand over what it leads. Not a setting of Kafka's.",
        at_least=0,
    ),
    Key(
        "connections.max.idle.ms",
        Kind.LONG,
        "600000",
        "Close a connection that was silent for so long.",
        at_least=1,
    ),
    Key("group.consumer.heartbeat.interval.ms", Kind.INT, "5000", "How often members are heard.", at_least=1),
    Key("group.consumer.max.size", Kind.INT, str(INT_MAX), "The most members of such a group.", at_least=1),
    Key("group.consumer.session.timeout.ms", Kind.INT, "45000", "How long it may be silent.", at_least=1),
    Key(
        "group.coordinator.state.max.bytes",
        Kind.LONG,
        str(256 * 2**20),
        "Memory for groups, members and committed offsets; past it nothing new is taken.",
        at_least=2**20,
    ),
    Key(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        "0",
        "How long an empty group waits for more members before its first rebalance.",
        at_least=0,
    ),
    Key(
        "group.max.session.timeout.ms",
        Kind.INT,
        "1800000",
        "The longest session that a group's member may ask for.",
        at_least=1,
    ),
    Key("group.max.size", Kind.INT, str(INT_MAX), "The most members that a group may have.", at_least=1),
    Key(
        "group.min.session.timeout.ms",
        Kind.INT,
        "6000",
        "The shortest session that a group's member may ask for.",
        at_least=1,
    ),
    Key(
        "offset.metadata.max.bytes",
        Kind.INT,
        "4096",
        "The longest text that may be committed with an offset.",
        at_least=0,
    ),
    Key(
        "offsets.retention.check.interval.ms",
        Kind.LONG,
        "600000",
        "How often committed offsets are looked through for expired ones.",
        at_least=1,
    ),
    Key(
        "offsets.retention.minutes",
        Kind.INT,
        str(7 * 24 * 60),
        "How long the offsets of a group without members are kept.",
        at_least=1,
    ),
    Key(
        "offsets.topic.num.partitions",
        Kind.INT,
        "50",
        "Partitions of __consumer_offsets, when it is created.",
        at_least=1,
    ),
    Key(
        "offsets.topic.replication.factor",
        Kind.INT,
        "1",
        "Replicas of __consumer_offsets, when it is created.",
        at_least=1,
    ),
    Key(
        "transaction.coordinator.state.max.bytes",
        Kind.LONG,
        str(256 * 2**20),
        "Memory for transactional ids; past it idle ones are forgotten, and then new ones are refused.",
        at_least=2**20,
    ),
    Key(
        "transaction.max.timeout.ms",
        Kind.INT,
        "900000",
        "The longest timeout that a transactional producer may ask for.",
        at_least=1,
    ),
    Key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        Kind.INT,
        str(HOUR_MS),
        "How often unused transactional ids are looked for.",
        at_least=1,
    ),
    Key(
        "transactional.id.expiration.ms",
        Kind.INT,
        str(7 * DAY_MS),
        "How long an unused transactional id is remembered.",
        at_least=1,
    ),
    Key(
        "transaction.state.log.num.partitions",
        Kind.INT,
        "50",
        "Partitions of __transaction_state, when it is created.",
        at_least=1,
    ),
    Key(
        "transaction.state.log.replication.factor",
        Kind.INT,
        "1",
        "Replicas of __transaction_state, when it is created.",
        at_least=1,
    ),
    Key("default.replication.factor", Kind.INT, "1", "Replicas of a topic that does not say.", at_least=1),
    Key("delete.topic.enable", Kind.BOOLEAN, "true", "Whether topics can be deleted at all."),
    Key(
        "fetch.max.bytes",
        Kind.INT,
        str(55 * 2**20),
        "The most that one fetch may answer with.",
        at_least=1024,
    ),
    Key(
        "leader.imbalance.check.interval.seconds",
        Kind.LONG,
        "300",
        "How often the controller looks for partitions that their first replica does not lead.",
        at_least=1,
    ),
    Key(
        "log.cleaner.backoff.ms",
        Kind.LONG,
        "15000",
        "How long compaction waits before it looks for work again.",
        at_least=1,
    ),
    Key(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        str(128 * 2**20),
        "Memory for the keys of one pass of compaction; with more keys it takes several passes.",
        at_least=2**10,
    ),
    Key(
        "log.retention.check.interval.ms", Kind.LONG, "300000", "How often retention is applied.", at_least=1
    ),
    Key("max.connections", Kind.INT, "10000", "Connections accepted at the same time.", at_least=1),
    Key("max.incremental.fetch.session.cache.slots", Kind.INT, "1000", "Fetch sessions kept.", at_least=0),
    Key(
        "max.request.partition.size.limit",
        Kind.INT,
        "2000",
        "Partitions in one DescribeTopicPartitions answer.",
        at_least=1,
    ),
    Key("node.id", Kind.INT, "0", "This broker's number in the cluster.", at_least=0),
    Key("num.partitions", Kind.INT, "1", "Partitions of a topic that does not say.", at_least=1),
    Key(
        "producer.id.expiration.ms",
        Kind.INT,
        str(DAY_MS),
        "How long a silent producer's sequences are remembered.",
        at_least=1,
    ),
    Key(
        "queued.max.request.bytes",
        Kind.LONG,
        str(256 * 2**20),
        "Memory for requests that are still arriving; past it the slowest sender is disconnected.",
        at_least=2**20,
    ),
    Key(
        "replica.fetch.backoff.ms",
        Kind.INT,
        "100",
        "How long a follower waits after a failed fetch.",
        at_least=0,
    ),
    Key(
        "replica.fetch.max.bytes",
        Kind.INT,
        str(2**20),
        "The most that a follower asks of one partition at a time.",
        at_least=0,
    ),
    Key(
        "replica.fetch.response.max.bytes",
        Kind.INT,
        str(10 * 2**20),
        "The most that a follower asks of one leader at a time.",
        at_least=0,
    ),
    Key(
        "replica.fetch.wait.max.ms",
        Kind.INT,
        "500",
        "How long a leader lets a follower's fetch wait for records.",
        at_least=0,
    ),
    Key(
        "replica.lag.time.max.ms",
        Kind.LONG,
        "30000",
        "A follower that has not caught up for so long leaves the in-sync set.",
        at_least=1,
    ),
    Key(
        "socket.request.max.bytes",
        Kind.INT,
        str(100 * 2**20),
        "The largest request that is read.",
        at_least=1024,
    ),
)


def _synonym_keys() -> Iterator[Key]:
    """A broker setting for each synonym of a topic setting: the same rule, in its own unit."""
    for key in TOPIC_KEYS.values():
        for synonym in key.synonyms:
            default = key.default if synonym.factor == 1 else str(int(key.default) // synonym.factor)
            yield Key(synonym.name, key.kind, default, key.doc, key.at_least, key.at_most, key.choices)


BROKER_KEYS: dict[str, Key] = {**{key.name: key for key in _synonym_keys()}, **_OWN_BROKER_KEYS}

DYNAMIC_BROKER_KEYS = frozenset(key.name for key in _synonym_keys())
"""Broker settings that can be altered while it runs: the defaults of topic settings."""
