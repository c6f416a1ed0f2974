"""The servers that tests share: one Spark session, Apache Kafka, PostgreSQL and Redis per process.

`tests/services.py` sends all tests of a server to the same process. A test that must kill or reconfigure
a server starts its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from gapless.testing.apache_kafka import ApacheKafka
from gapless.testing.postgres import Postgres
from gapless.testing.proxy import FaultProxy
from gapless.testing.redis import Redis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEEPS_RECORDS_OF_ANY_AGE = {"log.retention.ms": "-1"}
"""A broker setting for every cluster that tests share.

Many tests write records with timestamps of years ago. By default a broker checks every five minutes for
segments whose records are all older than a week, and deletes them. If it does so between the writes and the
reads of a test, the test fails. Tests of retention create topics with their own `retention.ms`.
"""


def retention_ms(bootstrap: str, topic: str) -> str:
    """Return the `retention.ms` that applies to a topic, whether it is the topic's own or the broker's."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return str(admin.describe_configs([resource])[resource].result(30)["retention.ms"].value)


# Spark compiles each query to Java code, which takes longer than the few records of a test need. `make test`
# interprets queries instead. `make test-all`, the demo and each test with a driver of its own compile them.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


class ApacheBehindProxy(NamedTuple):
    """One node of Apache Kafka whose clients all go through a proxy, so that a test can cut them off."""

    node: ApacheKafka
    network: FaultProxy

    @property
    def bootstrap(self) -> str:
        return self.network.bootstrap


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The only Spark session of the process. `spark_session()` returns it too; a test must not stop it."""
    from gapless.pipeline import spark_session

    compiles = os.environ.get("GAPLESS_SPARK_COMPILES") == "true"
    session = spark_session("gapless-tests", short_lived=True, config={} if compiles else INTERPRETED)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def apache_of_session() -> Iterator[ApacheBehindProxy]:
    with FaultProxy([1]) as proxy:
        properties = {
            "advertised.listeners": f"PLAINTEXT://{proxy.address(1)}",
            # How often it looks for transactions that have timed out.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            **KEEPS_RECORDS_OF_ANY_AGE,
        }
        with ApacheKafka(heap_mb=256, light=True, properties=properties) as node:
            proxy.forward(1, node.bootstrap)
            yield ApacheBehindProxy(node, proxy)


@pytest.fixture
def apache(apache_of_session: ApacheBehindProxy) -> ApacheBehindProxy:
    """Apache Kafka, without faults in its network."""
    apache_of_session.network.heal()
    return apache_of_session


def emptied(server: Postgres) -> Postgres:
    """Delete all tables of a server, and return it."""
    import psycopg

    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS public, sales CASCADE")
        connection.execute("CREATE SCHEMA public")
    return server


@pytest.fixture(scope="session")
def postgres_of_session() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def postgres(postgres_of_session: Postgres) -> Postgres:
    """PostgreSQL with an empty database."""
    return emptied(postgres_of_session)


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    """The address of an empty database."""
    return postgres.dsn


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    with Redis() as server:
        yield server
