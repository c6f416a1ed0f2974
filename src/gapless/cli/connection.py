"""How client-side commands reach a cluster, any Kafka: the options, the properties file, the clients.

A `Connection` hands out confluent-kafka clients that are known to have reached a broker: one that does not
answer raises `Unreachable` within `PATIENCE_S`, with the reason that librdkafka gave, and never hangs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from gapless.errors import GaplessError, Unreachable, UsageError
from gapless.testing.quiet import quiet_logger

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
PATIENCE_S = 10.0
PATIENCE_ALL_DOWN_S = 3.0  # when every address refuses, a broker that is just starting may still come

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        envvar="GAPLESS_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Brokers to ask first, separated by commas.",
        show_default=DEFAULT_BOOTSTRAP,
    ),
]
ClientConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        metavar="FILE",
        help="librdkafka properties, one key=value a line, e.g. for SASL and TLS.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

_REFUSED = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
_NO_ANSWER = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}


def read_properties(path: Path) -> dict[str, str]:
    """The properties of a file: `key=value` lines, `#` comments, blank lines."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    properties: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{path}, line {number}: expected key=value, found: {text}")
        properties[key.strip()] = value.strip()
    return properties


def split_pairs(pairs: list[str], option: str) -> dict[str, str]:
    """`["a=1", "b=2"]` from a repeated option."""
    result: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} expects key=value, found: {pair}")
        result[key] = value
    return result


class Connection:
    """Where the cluster is and how to talk to it. Options go before the file, the file before defaults."""

    def __init__(self, bootstrap: str | None, client_config: Path | None) -> None:
        self._file = client_config
        self.properties = read_properties(client_config) if client_config is not None else {}
        self.bootstrap = bootstrap or self.properties.get("bootstrap.servers") or DEFAULT_BOOTSTRAP
        self._errors: list[KafkaError] = []

    def admin(self) -> AdminClient:
        """An admin client; keep it until its futures are done, they fail without it."""
        admin: AdminClient = self._connected(AdminClient, {}, {})
        return admin

    def producer(self, defaults: Mapping[str, Any], chosen: Mapping[str, Any]) -> Producer:
        """A producer. What the user chose by option goes before the file, the file before the defaults."""
        producer: Producer = self._connected(Producer, defaults, chosen)
        return producer

    def consumer(self, defaults: Mapping[str, Any], chosen: Mapping[str, Any]) -> Consumer:
        """A consumer for `assign`: it joins no group and commits nothing (the API insists on a group id)."""
        alone = {"enable.auto.commit": False, "enable.auto.offset.store": False}
        defaults = {"group.id": "gapless-cli", **defaults}
        consumer: Consumer = self._connected(Consumer, defaults, {**chosen, **alone})
        return consumer

    def _connected(self, kind: type[Any], defaults: Mapping[str, Any], chosen: Mapping[str, Any]) -> Any:
        configuration: dict[str, Any] = {
            "client.id": "gapless-cli",
            "reconnect.backoff.max.ms": 1000,
            **defaults,
            **self.properties,
            **chosen,
            "bootstrap.servers": self.bootstrap,
            "error_cb": self._errors.append,
            # librdkafka's own log lines would go to stderr; what matters of them reaches error_cb as well.
            "logger": quiet_logger(),
        }
        try:
            client = kind(configuration)
        except KafkaException as error:
            where = f"{self._file}: " if self._file is not None else ""
            raise UsageError(f"{where}{error.args[0].str()}") from None
        self._wait_for_a_broker(client)
        return client

    def _wait_for_a_broker(self, client: Any) -> None:
        started = time.monotonic()
        while True:
            try:
                client.list_topics(timeout=1.0)
                return
            except KafkaException as error:
                if error.args[0].code() not in _NO_ANSWER:
                    raise Unreachable(
                        f"{self.bootstrap} does not serve metadata: {error.args[0].str()}"
                    ) from None
            client.poll(0)  # serves error_cb
            codes = {error.code() for error in self._errors}
            waited_s = time.monotonic() - started
            all_down = KafkaError._ALL_BROKERS_DOWN in codes and waited_s > PATIENCE_ALL_DOWN_S
            if codes & _REFUSED or all_down or waited_s > PATIENCE_S:
                raise Unreachable(self._why_unreachable())

    def _why_unreachable(self) -> str:
        reasons = [error for error in self._errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
        refusals = [error for error in reasons if error.code() in _REFUSED]
        if refusals:
            return f"{self.bootstrap} refuses the connection: {_reason(refusals[-1])}"
        reason = f": {_reason(reasons[-1])}" if reasons else ""
        return f"cannot reach a Kafka broker at {self.bootstrap}{reason} (start one with: gapless up)"


def _reason(error: KafkaError) -> str:
    """The core of a message such as 'host:1/bootstrap: Connect to ipv4#… failed: Connection refused (…)'."""
    text = error.str().split(" (after ")[0]
    text = text.partition("/bootstrap: ")[2] or text
    return text.rpartition(" failed: ")[2] if text.startswith("Connect to ") else text


@contextmanager
def kafka_errors(action: str) -> Iterator[None]:
    """What the cluster refuses becomes one line: '<action>: <the cluster's words>'."""
    try:
        yield
    except KafkaException as error:
        cause: KafkaError = error.args[0]
        kind = Unreachable if cause.code() in _NO_ANSWER | _REFUSED else GaplessError
        raise kind(f"{action}: {in_words(cause)}") from None


def in_words(error: KafkaError) -> str:
    """What the cluster or librdkafka says of an error, without saying who says it."""
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return "there is no such topic or partition"
    return error.str().removeprefix("Broker: ").removeprefix("Local: ")
