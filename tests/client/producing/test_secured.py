"""Apache Kafka behind TLS and passwords (SASL_SSL): librdkafka's properties open it, wrong ones are told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gapless.client import Consumer, Producer
from gapless.errors import GaplessError
from gapless.testing.apache_kafka import ApacheKafka
from gapless.testing.processes import free_ports
from tests.client.conftest import read_all

pytestmark = pytest.mark.apache

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Secured(NamedTuple):
    """Where it is, and what it takes to get in."""

    bootstrap: str
    properties: dict[str, Any]


def openssl(folder: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """An authority, and a certificate of it for 127.0.0.1."""
    new = "-newkey rsa:2048 -nodes"
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(folder, f"req -x509 {new} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem")
    openssl(folder, f"req {new} -subj /CN=127.0.0.1 -keyout broker.key -out broker.csr")
    openssl(
        folder,
        "x509 -req -in broker.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names "
        "-out broker.pem",
    )
    both = (folder / "broker.key").read_text() + (folder / "broker.pem").read_text()
    (folder / "keystore.pem").write_text(both)


class SecuredKafka(ApacheKafka):
    """Apache Kafka with a third listener, for clients with a name and a password."""

    def __init__(self, certificates: Path) -> None:
        super().__init__(heap_mb=256)
        self._certificates = certificates
        self.secured_port = 0

    def _choose_ports(self) -> None:
        super()._choose_ports()
        [self.secured_port] = free_ports(1)
        lines = dict(line.split("=", 1) for line in self._configuration.read_text().splitlines())
        secured = f"SASL_SSL://127.0.0.1:{self.secured_port}"
        lines["listeners"] += f",{secured}"
        lines["advertised.listeners"] += f",{secured}"
        lines["listener.security.protocol.map"] += ",SASL_SSL:SASL_SSL"
        lines |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._certificates / "keystore.pem"),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{_LOGIN} required user_shop="secret";',
        }
        self._configuration.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    certificates = tmp_path_factory.mktemp("certificates")
    make_certificates(certificates)
    with SecuredKafka(certificates) as kafka:
        yield Secured(
            f"127.0.0.1:{kafka.secured_port}",
            {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(certificates / "ca.pem"),
                "sasl.mechanism": "PLAIN",
                "sasl.username": "shop",
                "sasl.password": "secret",
            },
        )


@pytest.mark.slow_variants("spooled")
@pytest.mark.parametrize(
    "options",
    [{}, {"spool_mode": "always"}, {"semantics": "exactly-once"}],
    ids=["direct", "spooled", "exactly-once"],
)
def test_every_path_reaches_a_secured_cluster(
    secured: Secured, tmp_path: Path, options: dict[str, Any]
) -> None:
    """And the ledger, which is made and written with the same properties."""
    spool: dict[str, Any] = {"spool": tmp_path / "spool"} if options else {}
    topic = f"secured-{len(options)}{options.get('semantics', '')}"
    with Producer(secured.bootstrap, "shop", properties=secured.properties, **options, **spool) as producer:
        for number in range(3):
            producer.send(topic, b"%d" % number)
        assert producer.flush(60) == 0
    found = read_all(secured.bootstrap, topic, **secured.properties)
    assert sorted(each.value or b"" for each in found) == [b"0", b"1", b"2"]
    assert read_all(secured.bootstrap, "gapless.ledger", **secured.properties)

    seen: list[bytes | None] = []
    consumer = Consumer(
        secured.bootstrap,
        group=f"reads-{topic}",
        topics=[topic],
        properties={**secured.properties, "auto.offset.reset": "earliest"},
    )
    for record in consumer:
        seen.append(record.value)
        if len(seen) == 3:
            break
    consumer.close()
    assert sorted(each or b"" for each in seen) == [b"0", b"1", b"2"]


def test_a_wrong_password_is_one_clear_line(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.client.producing.partitions.ASK_S", 3.0)
    wrong = {**secured.properties, "sasl.password": "guessed"}
    with (
        Producer(secured.bootstrap, "shop", properties=wrong) as producer,
        pytest.raises(GaplessError, match=r"does not answer.*(?i:authentication)"),
    ):
        producer.send("orders", b"x")
