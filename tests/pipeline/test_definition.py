"""A definition is taken whole or refused, and what is wrong in it is told with its line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gapless.errors import UsageError
from gapless.pipeline.definition import Definition
from gapless.pipeline.sections import (
    Dedup,
    KafkaProperties,
    Source,
    SparkSettings,
    ToDelta,
    ToKafka,
    ToParquet,
    ToPostgres,
    TransformSettings,
    Trigger,
)
from gapless.pipeline.settings import WrongSetting

SMALL = """\
name = "clean-orders"
checkpoint = "checkpoint"
[source]
bootstrap = "127.0.0.1:9092"
topics = ["orders"]
[[sinks]]
type = "kafka"
topic = "out"
"""

FULL = """\
name = "clean-orders"
checkpoint = "s3a://bucket/clean-orders"

[source]
bootstrap = "a:9092,b:9092"
topics = ["orders", "returns"]
starting = { orders = { 0 = 17, 1 = 0 } }
value = "json"
schema = "id BIGINT, amount DOUBLE"
on_loss = "continue"
max_records_per_batch = 5000
group = "lag-of-orders"

[kafka]
security.protocol = "SASL_SSL"
"sasl.mechanism" = "PLAIN"
sasl.username = "me"
sasl.password = "${GAPLESS_TEST_PASSWORD}"

[kafka.java]
max.poll.records = 100

[kafka.librdkafka]
"socket.keepalive.enable" = true

[dedup]
by = ["key", "timestamp"]
watermark = "10 minutes"

[transform]
file = "clean.sql"
stage = true

[[sinks]]
type = "kafka"
name = "clean"
topic = "out"
tasks = 4
transaction_timeout = "30 s"
properties = { linger.ms = 5 }

[[sinks]]
type = "delta"
path = "tables/orders"
key = "id"
latest_by = "changed"

[[sinks]]
type = "postgres"
url = "postgresql://me@localhost/shop"
table = "shop.orders"
key = ["id", "region"]
create = false

[[sinks]]
type = "parquet"
path = "~/files"
partition_by = ["region"]

[dead_letters]
type = "kafka"
topic = "dead"

[trigger]
every = "500 ms"

[spark]
master = "spark://host:7077"
spark.executor.memory = "2g"
"spark.speculation" = true
"""


def test_every_setting_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_TEST_PASSWORD", "a secret")
    file = tmp_path / "orders.toml"
    file.write_text(FULL)
    read = Definition.load(file)
    assert read == Definition(
        name="clean-orders",
        checkpoint="s3a://bucket/clean-orders",
        source=Source(
            bootstrap="a:9092,b:9092",
            topics=["orders", "returns"],
            starting={"orders": {0: 17, 1: 0}},
            value="json",
            schema="id BIGINT, amount DOUBLE",
            on_loss="continue",
            max_records_per_batch=5000,
            group="lag-of-orders",
        ),
        sinks=[
            ToKafka("out", name="clean", tasks=4, transaction_timeout="30 s", properties={"linger.ms": "5"}),
            ToDelta(str(tmp_path / "tables/orders"), key=["id"], latest_by="changed"),
            ToPostgres("postgresql://me@localhost/shop", "shop.orders", key=["id", "region"], create=False),
            ToParquet(str(Path("~/files").expanduser()), partition_by=["region"]),
        ],
        kafka=KafkaProperties(
            every={
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "me",
                "sasl.password": "a secret",
            },
            java={"max.poll.records": "100"},
            librdkafka={"socket.keepalive.enable": "true"},
        ),
        dedup=Dedup(by=["key", "timestamp"], watermark="10 minutes"),
        transform=TransformSettings(file=str(tmp_path / "clean.sql"), stage=True),
        dead_letters=ToKafka("dead", name="dead-letters"),
        trigger=Trigger(every="500 ms"),
        spark=SparkSettings(
            "spark://host:7077", {"spark.executor.memory": "2g", "spark.speculation": "true"}
        ),
        folder=tmp_path,
    )
    assert read.group == "lag-of-orders"
    assert read.trigger.every_s == 0.5
    assert read.dedup is not None
    assert read.dedup.watermark_s == 600
    assert [sink.name for _, sink in read.all_sinks()] == [
        *("clean", "delta", "postgres", "parquet", "dead-letters")
    ]
    assert isinstance(read.sinks[0], ToKafka)
    assert read.sinks[0].transaction_timeout_ms == 30_000
    assert read.at("sinks", 1, "path") == f"{file}:44"


def test_what_is_not_said_has_a_default(tmp_path: Path) -> None:
    read = Definition.parse(SMALL, "orders.toml", tmp_path)
    assert read.checkpoint == str(tmp_path / "checkpoint")
    assert read.source == Source("127.0.0.1:9092", ["orders"], "earliest", "bytes", None, "stop", 1_000_000)
    assert read.sinks == (ToKafka("out", name="kafka", transaction_timeout="60 seconds"),)
    assert read.bootstrap_of(ToKafka("out")) == "127.0.0.1:9092"
    assert read.group == "gapless.pipeline.clean-orders"
    assert (read.dedup, read.dead_letters) == (None, None)
    assert read.transform == TransformSettings()
    assert read.trigger == Trigger(every=None, once=False)
    assert read.spark.master == "local[*]"
    assert read.with_checkpoint("elsewhere").checkpoint == str(Path.cwd() / "elsewhere")


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_TEST_PASSWORD", "a secret")
    read = Definition.parse(FULL, "orders.toml")
    assert "a secret" not in repr(read)
    assert "me@localhost" not in repr(read)


# What is replaced in SMALL, by what, and what must be said of it.
TOP = [
    ('name = "clean-orders"', "", "1: the key `name` is missing"),
    ('checkpoint = "checkpoint"', "", "1: the key `checkpoint` is missing"),
    (
        'checkpoint = "checkpoint"',
        'checkpont = "c"',
        "2: unknown key `checkpont`; did you mean `checkpoint`?",
    ),
    ('checkpoint = "checkpoint"', "checkpoint = 3", "2: `checkpoint` must be a string"),
    ('"clean-orders"', '"clean orders"', "1: `name` must be 1 to 100 letters, digits, dashes"),
    ('"clean-orders"', '"clean.orders"', "1: `name` must be 1 to 100 letters, digits, dashes"),
    ('"clean-orders"', '""', "1: `name` must be 1 to 100 letters, digits, dashes"),
    ("[source]", "[sauce]", "3: unknown key `sauce`; did you mean `source`?"),
    ("[[sinks]]", "[sinks]", "6: sinks are a list: write [[sinks]], also if there is one"),
    ("[[sinks]]", "[dead_letters]", "1: a sink ([[sinks]]) is missing"),
    ("[source]", "[source", "3: expected ']' at the end of a table declaration (column 8)"),
    ('"clean-orders"', '"clean', "1: illegal character '\\n' (column 14)"),
    ("[source]", "[zzz]", "3: unknown key `zzz`; allowed: name, checkpoint, source, sinks, dedup, transform"),
]
SOURCE = [
    ("bootstrap = ", "bootsrap = ", "4: in [source]: unknown key `bootsrap`; did you mean `bootstrap`?"),
    ('bootstrap = "127.0.0.1:9092"', "", "3: in [source]: the key `bootstrap` is missing"),
    ('"127.0.0.1:9092"', "9092", "4: in [source]: `bootstrap` must be a string, not the number 9092"),
    ('"127.0.0.1:9092"', '" "', "4: in [source]: `bootstrap` must not be empty"),
    ('["orders"]', "[]", "5: in [source]: `topics` must name at least one topic"),
    ('["orders"]', "{ orders = 1 }", "5: in [source]: `topics` must be a string or a list of strings"),
    ('["orders"]', '["orders", 3]', "5: in [source]: `topics` must be a string or a list of strings"),
    ('["orders"]', '["a", "a"]', "5: in [source]: `topics` names the same twice"),
    ('["orders"]', '["or ders"]', "5: in [source]: 'or ders' cannot name a topic"),
    ("[[", 'value = "xml"\n[[', "6: in [source]: `value` must be bytes, text or json, not 'xml'"),
    ("[[", 'value = "json"\n[[', '6: in [source]: `value = "json"` needs a `schema`'),
    ("[[", 'schema = "a INT"\n[[', '6: in [source]: `schema` is only for `value = "json"`'),
    ("[[", 'on_loss = "ignore"\n[[', "6: in [source]: `on_loss` must be stop or continue, not 'ignore'"),
    ("[[", "max_records_per_batch = 0\n[[", "6: in [source]: `max_records_per_batch` must be at least 1"),
    ("[[", "max_records_per_batch = true\n[[", "must be a whole number, not true"),
    ("[[", 'starting = "first"\n[[', "6: in [source]: `starting` must be earliest or latest, or"),
    ("[[", "starting = 5\n[[", "6: in [source]: `starting` must be earliest"),
    ("[[", "starting = { other = { 0 = 1 } }\n[[", "6: in [source]: `starting` has the topic 'other'"),
    ("[[", "starting = { orders = { a = 1 } }\n[[", "partitions and offsets are numbers from 0 on"),
    ("[[", "starting = { orders = { 0 = -1 } }\n[[", "partitions and offsets are numbers from 0 on"),
    ("[[", "[source.starting.orders]\n0 = 'x'\n[[", "7: in [source]: `starting` must be"),
    (
        'type = "kafka"\ntopic = "out"',
        'type = "delta"\npath = "x"\n[source.x]',
        "9: in [source]: unknown key `x`; allowed: bootstrap, topics",
    ),
]
SINKS = [
    ('type = "kafka"', "", "6: in [[sinks]]: the key `type` is missing: kafka, delta, postgres or parquet"),
    ('"kafka"', '"kafak"', "7: in [[sinks]]: `type` must be kafka, delta, postgres or parquet, not 'kafak'"),
    ('"kafka"', "3", "7: in [[sinks]]: `type` must be kafka"),
    ('topic = "out"', 'topik = "out"', "8: in [[sinks]]: unknown key `topik`; did you mean `topic`?"),
    ('topic = "out"', 'topic = "orders"', "8: in [[sinks]]: the topic 'orders' is also a source"),
    ('topic = "out"', 'topic = "o/ut"', "8: in [[sinks]]: 'o/ut' cannot name a topic"),
    ('"out"', '"out"\ntasks = 0', "9: in [[sinks]]: `tasks` must be between 1 and 10,000"),
    ('"out"', '"out"\ntasks = "4"', "9: in [[sinks]]: `tasks` must be a whole number, not a string"),
    ('"out"', '"out"\ntransaction_timeout = 5', "`transaction_timeout` must be a string, not the number 5"),
    ('"out"', '"out"\ntransaction_timeout = "soon"', "must be a number and a unit, such as"),
    ('"out"', '"out"\ntransaction_timeout = "1 h"', "must be between 5 seconds and 15 minutes"),
    ('"out"', '"out"\nproperties = 3', "`properties` must be a table of properties, not the number 3"),
    ('"out"', '"out"\nproperties.acks = 1', "9: in [[sinks]]: `acks` cannot be set: it is always all"),
    ('"out"', '"out"\nname = "a b"', "9: in [[sinks]]: `name` must be 1 to 100 letters"),
    (
        '"out"',
        '"out"\n[[sinks]]\ntype = "kafka"\ntopic = "b"',
        "9: in [[sinks]]: there is already a sink named",
    ),
    (
        '"kafka"\ntopic = "out"',
        '"delta"\npath = "x"\nlatest_by = "at"',
        "9: in [[sinks]]: `latest_by` chooses among rows of a `key`",
    ),
    ('"kafka"\ntopic = "out"', '"delta"', "6: in [[sinks]]: the key `path` is missing"),
    (
        '"kafka"\ntopic = "out"',
        '"delta"\npath = "checkpoint"',
        "8: in [[sinks]]: `path` is the same as that of",
    ),
    ('"kafka"\ntopic = "out"', '"postgres"\nurl = "x"\ntable = "t"', "8: in [[sinks]]: `url` must be"),
    ('"kafka"\ntopic = "out"', '"postgres"\nurl = "postgresql://x"', "6: in [[sinks]]: the key `table` is"),
    (
        '"kafka"\ntopic = "out"',
        '"parquet"\npath = "a"\n[[sinks]]\ntype = "delta"\npath = "./a"',
        "11: in [[sinks]]: `path` is the same as that of the sink 'parquet'",
    ),
]
MORE = [
    ("[dedup]\nby = 'size'", "10: in [dedup]: `by` must be identity, key or hash, or a list of columns"),
    ("[dedup]\nby = 7", "10: in [dedup]: `by` must be identity, key or hash, or a list of columns"),
    ("[dedup]\nby = []", "10: in [dedup]: `by` must name at least one column"),
    (
        "[dedup]\nby = ['id']",
        "10: in [dedup]: `by` can name topic, partition, timestamp, key, value or headers",
    ),
    ("[dedup]\nby = 'key'", "10: in [dedup]: `by` other than identity needs a `watermark`"),
    (
        "[dedup]\nby = 'key'\nwatermark = '10 parsecs'",
        "11: in [dedup]: `watermark` must be a number and a unit",
    ),
    ("[dedup]\nwatermark = '1 h'", '10: in [dedup]: `watermark` is not for `by = "identity"`'),
    ("[transform]\nsql = 'SELECT 1'\nfile = 'a'", "11: in [transform]: `file` and `sql` exclude each other"),
    ("[transform]\nfunction = 'f'", "10: in [transform]: `function` must be module:function, not 'f'"),
    ("[transform]\nstage = 'yes'", "10: in [transform]: `stage` must be true or false, not a string"),
    ("[trigger]\nevery = '1 s'\nonce = true", "11: in [trigger]: `once` and `every` exclude each other"),
    ("[trigger]\nevery = '1'", "10: in [trigger]: `every` must be a number and a unit"),
    ("[kafka]\ngroup.id = 'x'", "10: in [kafka]: `group.id` cannot be set: it is `group` in [source]"),
    ("[kafka]\n'x' = [1]", "10: in [kafka]: `x` must be a string, a number, true or false"),
    ("[kafka.java]\n'isolation.level' = 'x'", "10: in [kafka]: `isolation.level` cannot be set"),
    ("[kafka]\njava = 3", "10: in [kafka]: `java` must be a table of properties"),
    ("[kafka]\nssl.ca.location = 'nope.pem'", "10: `ssl.ca.location` cannot be read"),
    ("[kafka]\n'sasl.username' = 'me'", "10: `sasl.username` needs a sasl.mechanism"),
    ("[spark]\nmaster = 3", "10: in [spark]: `master` must be a string, not the number 3"),
    ("[spark]\nmemory = '2g'", "10: in [spark]: unknown key `memory`; allowed: master, spark."),
    ("[spark]\nspark.master = 'local'", "10: in [spark]: `spark.master` is `master` here"),
    ("[spark]\nspark.app.name = 'x'", "10: in [spark]: `spark.app.name` is the pipeline's `name`"),
    ("[[dead_letters]]\ntype = 'kafka'", "9: in [dead_letters]: expected one table of settings"),
    ("[dead_letters]\ntopic = 'x'", "9: in [dead_letters]: the key `type` is missing"),
    ("[dead_letters]\ntype = 'kafka'\ntopic = 'orders'", "11: in [dead_letters]: the topic 'orders' is also"),
    (
        "[dead_letters]\ntype = 'kafka'\nname = 'kafka'",
        "11: in [dead_letters]: there is already a sink named",
    ),
    (
        "[transform]\nsql = 'SELECT ${GAPLESS_NO_SUCH}'",
        "10: the environment variable GAPLESS_NO_SUCH is not set",
    ),
    ("dedup = 3", "`dedup`"),
]


@pytest.mark.parametrize(("old", "new", "problem"), [*TOP, *SOURCE, *SINKS])
def test_a_mistake_is_told_with_its_line(old: str, new: str, problem: str, tmp_path: Path) -> None:
    assert old in SMALL
    refuse(SMALL.replace(old, new, 1), problem, tmp_path)


@pytest.mark.parametrize(("more", "problem"), MORE)
def test_a_mistake_in_a_section_is_told_with_its_line(more: str, problem: str, tmp_path: Path) -> None:
    refuse(SMALL + more, problem, tmp_path)


def refuse(text: str, problem: str, folder: Path) -> None:
    with pytest.raises(UsageError) as refused:
        Definition.parse(text, "orders.toml", folder)
    said = str(refused.value)
    assert "\n" not in said
    assert said.startswith("orders.toml:")
    assert problem in said.removeprefix("orders.toml:")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*orders.toml: No such file"):
        Definition.load(tmp_path / "orders.toml")
    (tmp_path / "orders.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it is not UTF-8 text"):
        Definition.load(str(tmp_path / "orders.toml"))


def test_variables_are_inserted_once_and_only_where_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAPLESS_TEST_A", "${GAPLESS_TEST_B}")
    text = SMALL + "[transform]\nsql = 'SELECT \"${GAPLESS_TEST_A}\", $${x}, $5 FROM records'"
    assert Definition.parse(text).transform.sql == 'SELECT "${GAPLESS_TEST_B}", ${x}, $5 FROM records'


def test_certificates_are_looked_for_beside_the_definition(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("a certificate")
    text = SMALL + "[kafka]\nssl.ca.location = 'ca.pem'\n[kafka.librdkafka]\n'ssl.crl.location' = 'x/crl.pem'"
    read = Definition.parse(text, "orders.toml", tmp_path)
    assert read.kafka.every == {"ssl.ca.location": str(tmp_path / "ca.pem")}
    assert read.kafka.librdkafka == {"ssl.crl.location": str(tmp_path / "x" / "crl.pem")}


def test_a_sink_of_another_cluster_has_client_properties_of_its_own() -> None:
    read = Definition.parse(SMALL + "properties.linger.ms = 5\n[kafka]\nclient.id = 'me'")
    same = read.sinks[0]
    assert isinstance(same, ToKafka)
    assert read.kafka_of(same).every == {"client.id": "me", "linger.ms": "5"}
    other = replace(same, bootstrap="elsewhere:9092")
    assert read.kafka_of(other).every == {"linger.ms": "5"}
    assert read.bootstrap_of(other) == "elsewhere:9092"


def test_in_python_the_same_is_refused() -> None:
    source = Source("127.0.0.1:9092", "orders")
    assert source.topics == ("orders",)
    with pytest.raises(WrongSetting, match="`value` must be bytes, text or json"):
        Source("127.0.0.1:9092", ["orders"], value="xml")  # type: ignore[arg-type]
    with pytest.raises(WrongSetting, match="at least one sink"):
        Definition("a", "checkpoint", source, [])
    with pytest.raises(WrongSetting, match="already a sink named 'kafka'"):
        Definition("a", "checkpoint", source, [ToKafka("x"), ToKafka("y")])
    with pytest.raises(WrongSetting, match="would feed itself"):
        Definition("a", "checkpoint", source, [ToKafka("orders")])
    with pytest.raises(WrongSetting, match=r"`group\.id` cannot be set"):
        KafkaProperties(every={"group.id": "x"})
    made = Definition("a", "checkpoint", source, [ToKafka("x"), ToDelta("table")])
    assert made.checkpoint == str(Path.cwd() / "checkpoint")
    assert made.sinks[1] == ToDelta(str(Path.cwd() / "table"))
    assert made.at("transform", "sql") == "transform.sql"
    assert made.at_text("transform", "sql", line=2) == "transform.sql, line 2"


def test_reading_a_definition_does_not_load_spark_nor_any_driver() -> None:
    probe = (
        "import sys, gapless.pipeline.definition, gapless.pipeline.transform, gapless.pipeline.progress\n"
        "print({'pyspark', 'pyarrow', 'psycopg', 'confluent_kafka'} & sys.modules.keys())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.strip() == "set()"
