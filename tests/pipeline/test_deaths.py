"""The driver dies at every step of a batch: in the end every record is in every sink once (C8, E2, E6).

One pipeline with everything: duplicates and unreadable records, a transform, four sinks and dead
letters. What comes out is compared with what went in, record by record.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from gapless.client.formats import SEQUENCE_HEADER, SOURCE_HEADER, sequence_header, source_header
from gapless.testing.apache_kafka import ApacheKafka
from gapless.testing.broker import EmbeddedBroker
from gapless.testing.postgres import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(800)]

PARTITIONS = 3
RECORDS = 900
EVERY_DUPLICATE, EVERY_POISON = 10, 25
PER_BATCH = 200

DEFINITION = """
name = "deaths"
checkpoint = "checkpoint"

[source]
bootstrap = "{bootstrap}"
topics = ["orders"]
value = "json"
schema = "id BIGINT, amount DOUBLE"
max_records_per_batch = {per_batch}

[dedup]
by = "identity"

[transform]
sql = "SELECT CAST(id AS STRING) AS key, CAST(amount * 2 AS STRING) AS value FROM records"

[[sinks]]
type = "kafka"
topic = "doubled"

[[sinks]]
type = "delta"
path = "delta"

[[sinks]]
type = "parquet"
path = "parquet"

[[sinks]]
type = "postgres"
url = "{dsn}"
table = "doubled"
create = true

[dead_letters]
type = "kafka"
topic = "dead"

[spark]
master = "local[2]"
"""

# Where the driver dies, and in which batch; then it is started again, for the next death.
DEATHS = {
    "some": [("dedup:before", 0), ("kafka:after", 1)],
    "others": [
        ("dedup:after", 0),
        ("dead-letters:after", 0),
        ("delta:after", 1),
        ("postgres:after", 2),
        ("end", 3),
    ],
}


@pytest.fixture(
    params=[
        pytest.param("embedded-some", marks=pytest.mark.slow),
        pytest.param("embedded-others", marks=pytest.mark.soak),
        pytest.param("apache-some", marks=pytest.mark.soak),
        pytest.param("apache-others", marks=pytest.mark.soak),
    ]
)
def where_and_when(request: pytest.FixtureRequest) -> list[str]:
    return str(request.param).split("-")


@pytest.fixture
def bootstrap(where_and_when: list[str]) -> Iterator[str]:
    if where_and_when[0] == "apache":
        with ApacheKafka(heap_mb=256, light=True) as kafka:
            yield kafka.bootstrap
    else:
        with EmbeddedBroker() as broker:
            yield broker.bootstrap


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


def is_poison(number: int) -> bool:
    return number % EVERY_POISON == 0


def fill(bootstrap: str) -> None:
    """Orders, some of them twice in the log, some of them unreadable."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, PARTITIONS, 1) for name in ("orders", "doubled", "dead")]
    for made in admin.create_topics(topics).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    made_by = source_header("shop", b"incarnat")
    for number in range(RECORDS):
        partition, sequence = number % PARTITIONS, number // PARTITIONS
        value = b"{broken" if is_poison(number) else json.dumps({"id": number, "amount": number / 4}).encode()
        headers: list[tuple[str, str | bytes | None]] = [
            (SOURCE_HEADER, made_by),
            (SEQUENCE_HEADER, sequence_header(sequence)),
        ]
        for _ in range(2 if number % EVERY_DUPLICATE == 0 else 1):
            producer.produce("orders", value, key=b"k%d" % number, partition=partition, headers=headers)
    assert producer.flush(60) == 0


def read_all(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Every committed record of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"check-{topic}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found, ended = [], set[int | None]()
    while len(ended) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None, "the topic does not end"
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found.append((message.key(), message.value()))
    consumer.close()
    return found


def run_driver(definition: Path, *point: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.pipeline.driver", definition, *point],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
    )


def test_whatever_step_the_driver_dies_in_every_record_is_everywhere_once(
    where_and_when: list[str], bootstrap: str, postgres: Postgres, spark: SparkSession, tmp_path: Path
) -> None:
    fill(bootstrap)
    definition = tmp_path / "deaths.toml"
    definition.write_text(DEFINITION.format(bootstrap=bootstrap, dsn=postgres.dsn, per_batch=PER_BATCH))
    for point, batch in DEATHS[where_and_when[1]]:
        died = run_driver(definition, point, str(batch))
        assert died.returncode == -signal.SIGKILL, f"{point} in batch {batch}: {died.stderr[-2000:]}"
    ended = run_driver(definition)
    assert ended.returncode == 0, ended.stderr[-2000:]

    good = [number for number in range(RECORDS) if not is_poison(number)]
    expected = Counter((str(number), str(number / 2)) for number in good)
    in_kafka = Counter(
        (key.decode(), value.decode()) for key, value in read_all(bootstrap, "doubled") if key and value
    )
    assert in_kafka == expected
    for table in ("delta", "parquet"):
        rows = spark.read.format(table).load(str(tmp_path / table)).collect()
        assert Counter((row.key, row.value) for row in rows) == expected, table
    with psycopg.connect(postgres.dsn) as connection:
        in_table = connection.execute("SELECT key, value FROM doubled").fetchall()
    assert Counter((key, value) for key, value in in_table) == expected
    dead = Counter(key.decode() for key, _ in read_all(bootstrap, "dead") if key)
    assert dead == Counter(f"k{number}" for number in range(RECORDS) if is_poison(number))
