"""Requests to chosen brokers, of kinds that librdkafka does not send: kafka-python's client carries them.

It takes the same properties as every other command. Those of librdkafka that say how to log in and how to
encrypt are translated; one that has no counterpart there is refused rather than ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kafka.errors
from kafka import KafkaAdminClient

from gapless.cli.connection import PATIENCE_S, Connection
from gapless.errors import GaplessError, Unreachable, UsageError

_COUNTERPARTS = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}


class SingleBrokers:
    """A cluster whose brokers can be asked one by one."""

    def __init__(self, connection: Connection) -> None:
        settings = _translated(connection.properties)
        connection.admin()  # whoever cannot be reached is told of as by every other command
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what matters is raised
        try:
            self.admin = KafkaAdminClient(
                bootstrap_servers=connection.bootstrap.split(","),
                client_id="gapless-cli",
                bootstrap_timeout_ms=int(PATIENCE_S * 1000),
                request_timeout_ms=int(PATIENCE_S * 1000),
                **settings,
            )
        except kafka.errors.KafkaError as error:
            raise Unreachable(f"cannot reach a Kafka broker at {connection.bootstrap}: {error}") from None

    def ask(self, request: Any, broker: int) -> Any:
        """One broker's answer. Raises kafka-python's errors."""
        manager = self.admin._manager  # the only way to choose the broker
        return manager.run(_send, manager, request, broker)

    def close(self) -> None:
        """End all connections."""
        self.admin.close()


async def _send(manager: Any, request: Any, broker: int) -> Any:
    return await manager.send(request, node_id=broker)


def _translated(properties: dict[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in properties.items():
        if key in _COUNTERPARTS:
            settings[_COUNTERPARTS[key]] = value.upper() if key == "security.protocol" else value
        elif key == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = value != "none"
        elif key.startswith(("sasl.", "ssl.", "security.", "enable.ssl")):
            raise UsageError(f"this command does not know the property {key}")
    return settings


@contextmanager
def broker_errors(action: str) -> Iterator[None]:
    """What a broker refuses becomes one line."""
    try:
        yield
    except (kafka.errors.KafkaConnectionError, kafka.errors.KafkaTimeoutError) as error:
        raise Unreachable(f"{action}: {error}") from None
    except kafka.errors.KafkaError as error:
        raise GaplessError(f"{action}: {error}") from None
