"""Java from Python: Apache's command-line tools, a process each, and its clients in a JVM behind py4j."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway

from gapless.jars import jar_paths
from gapless.java import find_java
from gapless.testing.apache_kafka import kafka_tool

from .isolation import values

PYSPARK_JARS = Path(pyspark.__file__).parent / "jars"
# These JVMs live for seconds: quick to start is better than fast later.
_JVM_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def kafka_4_3_jars() -> list[Path]:
    """Apache Kafka's own jars: the server, its tools and their client."""
    return jar_paths("kafka")


def kafka_3_9_jars() -> list[Path]:
    """The older Java client, which Spark's connector brings, with the libraries that Spark gives it."""
    client = [path for path in jar_paths("spark") if path.name.startswith("kafka-clients-")]
    wanted = ("lz4-java-", "snappy-java-", "zstd-jni-", "slf4j-api-", "log4j-")
    return client + [path for path in sorted(PYSPARK_JARS.glob("*.jar")) if path.name.startswith(wanted)]


def run_tool(tool: str, *arguments: str, stdin: str = "") -> str:
    """What one of Kafka's tools printed, if it succeeded."""
    done = kafka_tool(tool, *arguments, stdin=stdin)
    if done.returncode != 0:
        raise RuntimeError(f"{tool} {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def run_formatter(formatter: str, bootstrap: str, topic: str, partition: int) -> list[Any]:
    """Return the JSON documents that one of Kafka's formatters makes of a partition of an internal topic."""
    # The tool cannot stop at the end of a partition. With the number of records it need not wait for more.
    count = len(values(bootstrap, topic, partition, committed=False))
    printed = run_tool(
        *("kafka-console-consumer", "--bootstrap-server", bootstrap, "--topic", topic),
        *("--partition", str(partition), "--offset", "earliest", "--max-messages", str(count)),
        *("--timeout-ms", "20000", "--formatter", f"org.apache.kafka.tools.consumer.{formatter}"),
    )
    decoder = json.JSONDecoder()
    starts = [found.start() for found in re.finditer(r'{"key":', printed)]
    return [decoder.raw_decode(printed, start)[0] for start in starts]


@contextmanager
def java_machine(jars: Iterable[Path]) -> Iterator[Any]:
    """A JVM with these jars, whose classes can be called from here; it ends with the block."""
    own = next(PYSPARK_JARS.glob("py4j-*.jar"))
    classpath = os.pathsep.join(str(jar) for jar in (own, *jars))
    command = [str(find_java().executable), *_JVM_OPTIONS, "-cp", classpath]
    # The server ends when its standard input does, so it cannot outlive this process.
    server = ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
    with subprocess.Popen(
        [*command, *server],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        if process.stdout is None:
            raise RuntimeError("no standard output")
        port, secret = int(process.stdout.readline()), process.stdout.readline().strip()
        parameters = GatewayParameters(port=port, auth_token=secret, auto_convert=True)
        gateway = JavaGateway(gateway_parameters=parameters)
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
            process.kill()
