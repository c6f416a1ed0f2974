"""A cluster that does not let us read says so once, and nothing hangs."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from gapless.client.consuming.consumer import Consumer
from gapless.client.consuming.starting import NotAuthorized
from gapless.testing.apache_kafka import ApacheKafka
from tests.client.conftest import wait_for

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def for_bob_alone(kind: ResourceType, name: str) -> AclBinding:
    """Nobody but bob; and we are nobody."""
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:bob", "*", AclOperation.ALL, AclPermissionType.ALLOW
    )


@pytest.mark.apache
def test_topics_and_groups_that_are_not_ours_are_told() -> None:
    with ApacheKafka(heap_mb=256, light=True, properties=AUTHORIZER) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 2})
        for topic in ("bobs", "everybodys"):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        bobs = [for_bob_alone(ResourceType.TOPIC, "bobs"), for_bob_alone(ResourceType.GROUP, "bobs-group")]
        for each in admin.create_acls(bobs).values():
            each.result(30)
        wait_for(lambda: admin.list_topics("bobs", timeout=30).topics["bobs"].error, "the rules hold")
        begun = time.monotonic()
        with pytest.raises(NotAuthorized, match="not allowed to read bobs"):
            Consumer(kafka.bootstrap, group="ours", topics="bobs").run(print)
        with pytest.raises(NotAuthorized, match="not allowed to be in group 'bobs-group'"):
            Consumer(kafka.bootstrap, group="bobs-group", topics="everybodys").run(print)
        assert time.monotonic() - begun < 30
