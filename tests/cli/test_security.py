"""Clusters that ask who is there: every client-side command takes librdkafka properties."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gapless.testing.apache_kafka import ApacheKafka

from .conftest import Gapless

pytestmark = pytest.mark.apache

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="secret";'


class KafkaWithPasswords(ApacheKafka):
    """Serves its clients by SASL PLAIN only. The controller, beside it, is not asked for a password."""

    def __init__(self) -> None:
        super().__init__(
            heap_mb=256,
            properties={
                "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
            },
        )

    def _is_ready(self) -> bool:
        """An open port is enough: the commands under test wait for the rest."""
        host, port = self.bootstrap.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True


@pytest.fixture(scope="module")
def guarded_bootstrap() -> Iterator[str]:
    with KafkaWithPasswords() as kafka:
        yield kafka.bootstrap


@pytest.fixture
def properties(tmp_path: Path, guarded_bootstrap: str) -> Callable[[str], str]:
    """Writes a properties file with a password."""

    def write(password: str) -> str:
        file = tmp_path / "client.properties"
        file.write_text(
            f"bootstrap.servers={guarded_bootstrap}\n"
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f"sasl.username=ann\nsasl.password={password}\n"
        )
        return str(file)

    return write


def test_every_command_can_show_a_password(run_gapless: Gapless, properties: Callable[[str], str]) -> None:
    known = ("--client-config", properties("secret"))
    assert run_gapless("topics", "create", "guarded", *known).code == 0
    assert run_gapless("produce", "guarded", *known, stdin=b"hello\n").code == 0
    assert run_gapless("consume", "guarded", *known).out == "hello\n"
    assert "guarded" in run_gapless("topics", "list", *known).out
    assert run_gapless("topics", "describe", "guarded", *known).code == 0
    assert run_gapless("topics", "describe", "guarded", "--replicas", *known).code == 0
    assert run_gapless("topics", "delete", "guarded", "--yes", *known).code == 0


@pytest.mark.parametrize("command", [("topics", "list"), ("produce", "t", "--count", "1"), ("consume", "t")])
def test_a_wrong_password_is_said_at_once(
    command: tuple[str, ...], run_gapless: Gapless, properties: Callable[[str], str]
) -> None:
    ran = run_gapless(*command, "--client-config", properties("wrong"))
    assert (ran.code, ran.out) == (3, "")
    assert "refuses the connection" in ran.err
    assert "Authentication failed" in ran.err
    assert ran.err.count("\n") == 1
