"""What the driver asks of the output cluster: is it there, has it the topics, what does it allow."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from gapless.client.formats import LEDGER_TOPIC
from gapless.errors import Unreachable
from gapless.pipeline.sinks.kafka.clients import Target
from gapless.pipeline.sinks.kafka.markers import Marker, Register
from gapless.pipeline.sinks.port import SinkRefused

log = logging.getLogger("gapless.pipeline")
_REQUEST_S = 15.0
_AT_ONCE = 8
_NOT_ALLOWED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_REPLICATION_FACTOR,
)


def check_cluster(target: Target, topic: str | None, keep_alive_s: float) -> None:
    """Raise unless the cluster answers, has the topic, and allows transactions as long as ours."""
    admin = target.admin()
    brokers = _reach(admin, target)
    if topic is not None and not _exists(admin, topic):
        raise SinkRefused(f"the output cluster at {target.bootstrap} has no topic {topic}: make it first")
    allowed = _broker_settings(admin, brokers[0])
    longest_ms = allowed.get("transaction.max.timeout.ms")
    if longest_ms is not None and target.transaction_timeout_ms > int(longest_ms):
        raise SinkRefused(
            f"transaction_timeout_ms is {target.transaction_timeout_ms}, but the output cluster allows "
            f"{longest_ms} (its transaction.max.timeout.ms): set less, or allow more"
        )
    retention_minutes = allowed.get("offsets.retention.minutes")
    if retention_minutes is not None and int(retention_minutes) * 60 < 2 * keep_alive_s:
        log.warning(
            "the output cluster forgets markers after %s minutes (offsets.retention.minutes), and they are "
            "kept alive only every %g: set keep_alive_s to less",
            retention_minutes,
            keep_alive_s / 60,
        )


def ensure_ledger(target: Target) -> None:
    """Make the ledger topic if it is missing: kept for ever, copied as the cluster does by default."""
    admin = target.admin()
    _reach(admin, target)
    if _exists(admin, LEDGER_TOPIC):
        return
    topic = NewTopic(LEDGER_TOPIC, num_partitions=1, replication_factor=-1, config={"retention.ms": "-1"})
    try:
        admin.create_topics([topic], request_timeout=_REQUEST_S)[LEDGER_TOPIC].result()
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        if reason.code() in _NOT_ALLOWED:
            raise SinkRefused(
                f"topic {LEDGER_TOPIC} is missing in the output cluster and cannot be made "
                f"({reason.str()}): make it, with retention.ms=-1, or allow this user to"
            ) from error
        raise Unreachable(f"topic {LEDGER_TOPIC} cannot be made: {reason.str()}") from error


def read_markers(target: Target, prefix: str) -> dict[str, Marker]:
    """All markers of a sink, by slot."""
    names = _groups(target, prefix)

    def read(name: str) -> Marker | None:
        register = Register(target, name)
        try:
            return register.read()
        finally:
            register.close()

    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip(names, pool.map(read, names), strict=True))
    except KafkaException as error:
        raise Unreachable(f"markers cannot be read: {error.args[0].str()}") from error
    return {name.removeprefix(prefix): marker for name, marker in found.items() if marker is not None}


def delete_markers(target: Target, prefix: str) -> list[str]:
    """Delete all markers of a sink. Says which."""
    names = _groups(target, prefix)
    admin = target.admin()
    deleted = []
    for name, done in (
        admin.delete_consumer_groups(names, request_timeout=_REQUEST_S).items() if names else ()
    ):
        try:
            done.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise Unreachable(f"the marker {name} cannot be deleted: {error.args[0].str()}") from error
        deleted.append(name)
    return deleted


def _groups(target: Target, prefix: str) -> list[str]:
    admin = target.admin()
    try:
        listed = admin.list_consumer_groups(request_timeout=_REQUEST_S).result()
    except KafkaException as error:
        raise _away(target, error.args[0]) from error
    for problem in listed.errors:  # of one broker: then the list may lack some
        raise _away(target, problem)
    return sorted(group.group_id for group in listed.valid if group.group_id.startswith(prefix))


def _reach(admin: AdminClient, target: Target) -> list[int]:
    try:
        return sorted(admin.list_topics(timeout=_REQUEST_S).brokers)
    except KafkaException as error:
        raise _away(target, error.args[0]) from error


def _away(target: Target, reason: object) -> Unreachable:
    text = reason.str() if isinstance(reason, KafkaError) else str(reason)
    return Unreachable(f"the output cluster at {target.bootstrap} does not answer: {text}")


def _exists(admin: AdminClient, topic: str) -> bool:
    # All topics: asking for one by name would make it, where brokers make topics on their own.
    return topic in admin.list_topics(timeout=_REQUEST_S).topics


def _broker_settings(admin: AdminClient, broker: int) -> Mapping[str, str]:
    """None of them if this user may not see them: then the first transaction tells."""
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    try:
        [described] = admin.describe_configs([resource], request_timeout=_REQUEST_S).values()
        return {name: entry.value for name, entry in described.result().items() if entry.value is not None}
    except KafkaException as error:
        log.debug("the settings of broker %d cannot be seen: %s", broker, error.args[0].str())
        return {}
