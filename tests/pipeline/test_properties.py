"""One table of client properties opens a cluster for both clients; what would break a promise is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from gapless.pipeline.properties import client_properties
from gapless.pipeline.sections import KafkaProperties
from gapless.pipeline.settings import WrongSetting
from tests.client.producing.test_secured import SecuredKafka, make_certificates, openssl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = r'se"c\ret; {}'
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def java(**every: str) -> dict[str, str]:
    return dict(client_properties(KafkaProperties(every=dotted(every))).java)


def librdkafka(**every: str) -> dict[str, str]:
    return dict(client_properties(KafkaProperties(every=dotted(every))).librdkafka)


def dotted(properties: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in properties.items()}


# Without a server


def test_a_login_becomes_jaas_with_every_character_kept() -> None:
    found = java(sasl_mechanisms="PLAIN", sasl_username="shop", sasl_password='a"b\\c\n')
    assert found == {
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{_PLAIN} required username="shop" password="a\\"b\\\\c\\n";',
    }
    found = java(sasl_mechanism="SCRAM-SHA-512", sasl_username="shop", sasl_password="x")
    assert found["sasl.jaas.config"].startswith(_SCRAM)


def test_what_both_clients_know_goes_to_both_and_the_rest_to_who_knows_it() -> None:
    every = {
        "client_id": "me",
        "security_protocol": "sasl_ssl",
        "linger_ms": "5",
        "fetch_wait_max_ms": "7",
        "max_poll_records": "9",
        "ssl_endpoint_identification_algorithm": "none",
    }
    assert java(**every) == {
        "client.id": "me",
        "security.protocol": "SASL_SSL",
        "fetch.max.wait.ms": "7",
        "max.poll.records": "9",
        "ssl.endpoint.identification.algorithm": "",
    }
    assert librdkafka(**every) == {
        "client.id": "me",
        "security.protocol": "sasl_ssl",
        "linger.ms": "5",
        "fetch.wait.max.ms": "7",
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_what_is_given_for_one_client_goes_before_what_was_translated(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CERTIFICATE")
    found = client_properties(
        KafkaProperties(
            every={
                "client.id": "me",
                "sasl.mechanism": "OAUTHBEARER",
                "ssl.ca.location": str(tmp_path / "ca.pem"),
            },
            java={"sasl.jaas.config": "own", "ssl.truststore.location": "store.jks", "client.id": "java"},
            librdkafka={"enable.sasl.oauthbearer.unsecure.jwt": "true"},
        )
    )
    assert found.java == {
        "client.id": "java",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "own",
        "ssl.truststore.location": "store.jks",
    }
    assert found.for_librdkafka("here:9092", group_id="g") == {
        "log_level": 0,
        "bootstrap.servers": "here:9092",
        "client.id": "me",
        "group.id": "g",
        "sasl.mechanism": "OAUTHBEARER",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "enable.sasl.oauthbearer.unsecure.jwt": "true",
    }
    assert found.for_spark("here:9092")["kafka.bootstrap.servers"] == "here:9092"


def test_a_keystore_in_librdkafkas_words_is_pkcs12() -> None:
    every = {"ssl_keystore_location": "me.p12", "ssl_keystore_password": "x"}
    assert java(**every) == {**dotted(every), "ssl.keystore.type": "PKCS12"}


@pytest.mark.parametrize(
    ("every", "message"),
    [
        ({"enable.auto.commit": "true"}, "commits by itself"),
        ({"isolation.level": "read_uncommitted"}, "reads what is committed"),
        ({"transactional.id": "x"}, "each task of a sink has its own"),
        ({"group.id": "x"}, "it is `group` in"),
        ({"group.instance.id": "x"}, "no client of a pipeline is a member"),
        ({"value.deserializer": "x"}, "read as bytes"),
        ({"interceptor.classes": "x"}, "could change what is read"),
        ({"enable.ssl.certificate.verification": "false"}, "ssl.ca.location"),
        ({"sasl.mechanism": "GSSAPI"}, r"sasl.jaas.config for GSSAPI in \[kafka.java\]"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "x"}, "PLAIN needs a sasl.password"),
        ({"sasl.username": "x"}, "needs a sasl.mechanism"),
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "cannot be read: /nowhere/ca.pem: No such file"),
        ({"ssl.certificate.pem": "x"}, "needs ssl.key.location"),
        ({"ssl.certificate.pem": "x", "ssl.key.pem": "-----BEGIN RSA PRIVATE KEY-----"}, "openssl pkcs8"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(every: dict[str, str], message: str) -> None:
    with pytest.raises(WrongSetting, match=message):
        client_properties(KafkaProperties(every=every))


def test_a_key_that_java_cannot_open_is_refused_before_it_fails(tmp_path: Path) -> None:
    openssl(tmp_path, "genrsa -out plain.key 2048")
    openssl(tmp_path, "pkcs8 -topk8 -v2 aes-256-cbc -in plain.key -out client.key -passout pass:locked")
    (tmp_path / "client.pem").write_text("CERTIFICATE")
    every = {
        "ssl.certificate.location": str(tmp_path / "client.pem"),
        "ssl.key.location": str(tmp_path / "client.key"),
    }
    with pytest.raises(WrongSetting, match=r"PBES2.*PKCS#12"):
        client_properties(KafkaProperties(every=every))


@pytest.mark.parametrize("kind", ["java", "librdkafka"])
def test_what_is_for_one_client_is_refused_too(kind: str) -> None:
    with pytest.raises(WrongSetting, match="read as bytes") as raised:
        client_properties(KafkaProperties(**{kind: {"key.deserializer": "x"}}))
    assert raised.value.key == ("kafka", kind, "key.deserializer")


# With Apache Kafka, which wants a name, a password and a certificate


class Secured(NamedTuple):
    """Where it is, and all that it takes to get in."""

    bootstrap: str
    properties: dict[str, str]
    certificates: dict[str, dict[str, str]]


class GuardedKafka(SecuredKafka):
    """Asks for a client's certificate besides, and knows SCRAM too."""

    def _choose_ports(self) -> None:
        super()._choose_ports()
        escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        jaas = f'{_PLAIN} required user_shop="{escaped}";'
        in_file = jaas.replace("\\", "\\\\")  # a file of Java properties takes backslashes for itself
        lines = dict(line.split("=", 1) for line in self._configuration.read_text().splitlines())
        lines |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._certificates / "ca.pem"),
            "listener.name.sasl_ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": in_file,
        }
        self._configuration.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    openssl(folder, "req -newkey rsa:2048 -nodes -subj /CN=shop -keyout plain.key -out client.csr")
    openssl(
        folder, "x509 -req -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out client.pem"
    )
    openssl(folder, "pkcs8 -topk8 -v1 PBE-SHA1-3DES -in plain.key -out client.key -passout pass:locked")
    openssl(folder, "pkcs12 -export -in client.pem -inkey plain.key -out client.p12 -passout pass:locked")
    with GuardedKafka(folder) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion("shop", credentials, PASSWORD.encode())
        for done in admin.alter_user_scram_credentials([user]).values():
            done.result(30)
        yield Secured(
            f"127.0.0.1:{kafka.secured_port}",
            {
                "security.protocol": "SASL_SSL",
                "sasl.username": "shop",
                "sasl.password": PASSWORD,
                "ssl.ca.location": str(folder / "ca.pem"),
            },
            {
                "PEM": {
                    "ssl.certificate.location": str(folder / "client.pem"),
                    "ssl.key.location": str(folder / "client.key"),
                    "ssl.key.password": "locked",
                },
                "PKCS#12": {
                    "ssl.keystore.location": str(folder / "client.p12"),
                    "ssl.keystore.password": "locked",
                },
            },
        )


@pytest.mark.slow_variants("plain")
@pytest.mark.apache
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mechanism", "certificate"), [("PLAIN", "PEM"), ("SCRAM-SHA-512", "PKCS#12")], ids=["plain", "scram"]
)
def test_the_same_table_opens_a_secured_cluster_for_both_clients(
    guarded: Secured, spark: SparkSession, mechanism: str, certificate: str
) -> None:
    every = {**guarded.properties, **guarded.certificates[certificate], "sasl.mechanism": mechanism}
    properties = client_properties(KafkaProperties(every=every))
    topic = f"secured-{mechanism}"

    producer = Producer(properties.for_librdkafka(guarded.bootstrap))
    for number in range(10):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(60) == 0

    reader = Consumer(
        properties.for_librdkafka(guarded.bootstrap, group_id="reads", auto_offset_reset="earliest")
    )
    reader.subscribe([topic])
    read = [message.value() for message in reader.consume(10, 60)]
    reader.close()

    rows = (
        spark.read.format("kafka")
        .options(**properties.for_spark(guarded.bootstrap))
        .option("subscribe", topic)
        .load()
        .collect()
    )
    expected = sorted(b"%d" % number for number in range(10))
    assert sorted(value or b"" for value in read) == expected
    assert sorted(bytes(row.value) for row in rows) == expected
