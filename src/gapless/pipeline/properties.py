"""One table of client properties, in librdkafka's words, for the two Kafka clients of a pipeline.

    properties = client_properties(KafkaProperties(every={"security.protocol": "SASL_SSL", ...}))
    Producer(properties.for_librdkafka(bootstrap))
    spark.read.format("kafka").options(**properties.for_spark(bootstrap))

Spark reads with the Java client, which has other words for logging in and for certificates: they are
translated. What both know goes to both, the rest to the client that knows it; `java` and `librdkafka` go to
one client only, and go before what was translated. Certificates and keys reach Java as text, so that Spark's
workers need no files for it. Properties on which the guarantee rests are refused, with the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gapless.pipeline.sections import KafkaProperties
from gapless.pipeline.settings import WrongSetting

_SAME_IN_BOTH = {
    *("client.id", "client.rack", "client.dns.lookup", "metadata.max.age.ms", "check.crcs"),
    *("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms"),
    *("fetch.min.bytes", "fetch.max.bytes", "max.partition.fetch.bytes"),
    *("socket.connection.setup.timeout.ms", "sasl.kerberos.service.name", "ssl.key.password"),
}
_RENAMED = {
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "socket.timeout.ms": "request.timeout.ms",
}
_ONLY_JAVA_KNOWS = {
    *("default.api.timeout.ms", "max.poll.records", "receive.buffer.bytes", "send.buffer.bytes"),
    *("fetch.max.wait.ms", "sasl.jaas.config", "ssl.protocol", "ssl.enabled.protocols", "ssl.provider"),
    *("ssl.keystore.type", "ssl.secure.random.implementation", "ssl.engine.factory.class"),
    *("sasl.client.callback.handler.class", "security.providers", "metric.reporters"),
}
_ONLY_JAVA_HAS = ("ssl.truststore.", "ssl.trustmanager.", "ssl.keymanager.", "sasl.login.")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_PBES2 = bytes.fromhex("06092a864886f70d01050d")  # its object identifier, 1.2.840.113549.1.5.13
_REFUSED = {
    "metadata.broker.list": "it is `bootstrap` in [source], and in sinks of another cluster",
    "group.instance.id": "no client of a pipeline is a member of a group",
    "key.deserializer": "records are read as bytes; see `value` in [source]",
    "value.deserializer": "records are read as bytes; see `value` in [source]",
    "key.serializer": "records are written as bytes",
    "value.serializer": "records are written as bytes",
    "interceptor.classes": "Spark does not allow it, as it could change what is read",
    "plugin.library.paths": "it could change what is read and written",
}


class ClientProperties(NamedTuple):
    """The same properties in the words of each client. They hold passwords: never print them."""

    librdkafka: Mapping[str, str]
    java: Mapping[str, str]

    def for_librdkafka(self, bootstrap: str, **own: Any) -> dict[str, Any]:
        """For a client of confluent-kafka; `own` (dots written as _) goes before the user's."""
        given = {name.replace("_", "."): value for name, value in own.items()}
        # Nobody polls these clients for their log, and it would go to stderr.
        quiet = {} if {"log_level", "debug"} & self.librdkafka.keys() else {"log_level": 0}
        return {**quiet, **self.librdkafka, **given, "bootstrap.servers": bootstrap}

    def for_spark(self, bootstrap: str) -> dict[str, str]:
        """Options of Spark's Kafka source."""
        return {f"kafka.{name}": value for name, value in self.java.items()} | {
            "kafka.bootstrap.servers": bootstrap
        }


def client_properties(kafka: KafkaProperties | None = None) -> ClientProperties:
    """The properties for each client. Raises `WrongSetting` for what cannot be or cannot be translated."""
    kafka = kafka or KafkaProperties()
    for kind, properties in (("", kafka.every), ("java", kafka.java), ("librdkafka", kafka.librdkafka)):
        for name, reason in _REFUSED.items():
            if name in properties:
                raise _wrong(name, f"cannot be set: {reason}", kind)
    librdkafka = {name: value for name, value in kafka.every.items() if not _is_of_java(name)}
    return ClientProperties(
        {**librdkafka, **kafka.librdkafka}, {**_in_java(kafka.every, kafka.java), **kafka.java}
    )


def _is_of_java(name: str) -> bool:
    return name in _ONLY_JAVA_KNOWS or name.startswith(_ONLY_JAVA_HAS)


def _in_java(every: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    java: dict[str, str] = {}
    for name, value in every.items():
        if name in _SAME_IN_BOTH or _is_of_java(name):
            java[name] = value
        elif name in _RENAMED:
            java[_RENAMED[name]] = value
    given = {**java, **own}
    if "security.protocol" in every:
        java["security.protocol"] = every["security.protocol"].upper()
    java |= _verification(every)
    java |= _login(every, given)
    if not _any_begins(given, "ssl.truststore."):
        java |= _authorities(every)
    if not _any_begins(own, "ssl.keystore."):
        java |= _certificate(every)
    return java


def _any_begins(properties: Mapping[str, str], beginning: str) -> bool:
    return any(name.startswith(beginning) for name in properties)


def _verification(every: Mapping[str, str]) -> dict[str, str]:
    if every.get("enable.ssl.certificate.verification", "true").lower() != "true":
        raise _wrong(
            "enable.ssl.certificate.verification",
            "cannot be switched off for Spark's client: name the authority with ssl.ca.location",
        )
    name = "ssl.endpoint.identification.algorithm"
    return {name: every[name].lower().replace("none", "")} if name in every else {}


def _login(every: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """JAAS, Java's way to say who we are."""
    named = [name for name in ("sasl.mechanism", "sasl.mechanisms") if name in every]
    if not named:
        if "sasl.username" in every and "sasl.mechanism" not in given:
            raise _wrong("sasl.username", "needs a sasl.mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
        return {}
    mechanism = every[named[-1]]
    java = {"sasl.mechanism": mechanism}
    if "sasl.jaas.config" in given:
        return java
    module = _LOGIN_MODULES.get(mechanism)
    if module is None:
        raise _wrong(
            named[-1],
            f"cannot be translated for Spark's client: give its sasl.jaas.config for {mechanism} "
            "in [kafka.java]",
        )
    options = {}
    for option in ("username", "password"):
        if f"sasl.{option}" not in every:
            raise _wrong(named[-1], f"{mechanism} needs a sasl.{option}")
        options[option] = _quoted(every[f"sasl.{option}"])
    words = " ".join(f"{option}={value}" for option, value in options.items())
    return {**java, "sasl.jaas.config": f"{module} required {words};"}


def _quoted(text: str) -> str:
    """As Java's reader of JAAS understands it: escapes as in C, and no line may end in a string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _authorities(every: Mapping[str, str]) -> dict[str, str]:
    """Whose certificates are trusted."""
    text = _text_of(every, "ssl.ca.pem", "ssl.ca.location")
    if text is None:
        return {}
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text}


def _certificate(every: Mapping[str, str]) -> dict[str, str]:
    """Our own certificate, for brokers that ask for one."""
    if "ssl.keystore.location" in every:
        both = ("ssl.keystore.location", "ssl.keystore.password")
        # The key has the store's password in PKCS#12.
        return {"ssl.keystore.type": "PKCS12"} | {name: every[name] for name in both if name in every}
    chain = _text_of(every, "ssl.certificate.pem", "ssl.certificate.location")
    key = _text_of(every, "ssl.key.pem", "ssl.key.location")
    if chain is None and key is None:
        return {}
    if chain is None or key is None:
        present, absent = ("key", "certificate") if chain is None else ("certificate", "key")
        raise _wrong(f"ssl.{present}.location", f"needs ssl.{absent}.location beside it")
    if "BEGIN RSA PRIVATE KEY" in key or "BEGIN EC PRIVATE KEY" in key:
        raise _wrong(
            "ssl.key.location", "must be PKCS#8 for Spark's client: openssl pkcs8 -topk8 -in OLD -out NEW"
        )
    if _is_locked_by_pbes2(key):
        raise _wrong(
            "ssl.key.location",
            "is encrypted in a way that Spark's client cannot open (PBES2): use ssl.keystore.location with a "
            "PKCS#12 file, or encrypt it with: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES",
        )
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}


def _is_locked_by_pbes2(key: str) -> bool:
    """Whether it is encrypted as OpenSSL does today, which Kafka's client does not find in Java."""
    _, begins, rest = key.partition("BEGIN ENCRYPTED PRIVATE KEY-----")
    body = "".join(rest.partition("-----")[0].split())
    try:
        return bool(begins) and _PBES2 in base64.b64decode(body)
    except ValueError:
        return False  # for the client to tell


def _text_of(every: Mapping[str, str], inline: str, location: str) -> str | None:
    if inline in every:
        return every[inline]
    if location not in every:
        return None
    try:
        return Path(every[location]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not PEM text"
        raise _wrong(location, f"cannot be read: {every[location]}: {why}") from None


def _wrong(name: str, problem: str, kind: str = "") -> WrongSetting:
    return WrongSetting(("kafka", kind, name) if kind else ("kafka", name), f"`{name}` {problem}")
