"""One peer for the session, every client in front of it, and topics that no two tests share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from py4j import java_gateway, protocol

from .admins import Admin
from .admins.aio import AiokafkaAdmin
from .admins.confluent import ConfluentAdmin
from .admins.java import JavaAdmin
from .admins.kafka_python import KafkaPythonAdmin
from .clients import Client
from .clients.aio import Aiokafka
from .clients.confluent import Confluent
from .clients.java import JavaClient
from .clients.kafka_python import KafkaPython
from .clients.kcat import Kcat
from .jvm import java_machine, kafka_3_9_jars, kafka_4_3_jars
from .peers import DEFAULT_PEER, Peer, running_peer
from .raw import RawClient, connected

CLIENTS = ("confluent", "kafka-python", "aiokafka", "kcat", "java-4.3", "java-3.9")
REPLACING_ADMINS = ("confluent", "aiokafka", "java-3.9")
INSIGHTFUL_ADMINS = ("kafka-python", "java-4.3", "java-3.9")
MODERN_ADMINS = ("confluent", "kafka-python", "java-4.3", "java-3.9")
ADMINS = ("confluent", "kafka-python", "aiokafka", "java-4.3", "java-3.9")

NewTopic = Callable[..., str]
MakeClient = Callable[[str], Client]


@pytest.fixture(autouse=True)
def plain_py4j(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark makes errors of its own of Java's, with the help of Spark's JVM: ours is another one."""
    if request.node.get_closest_marker("spark") is None:
        monkeypatch.setattr(java_gateway, "get_return_value", protocol.get_return_value)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that another peer would only repeat.

    A test without the fixture `peer` starts a broker of its own, the same one whatever the peer is.
    """
    name = config.getoption("--peer")
    here = Path(__file__).parent
    repeated = [
        item
        for item in items
        if name != DEFAULT_PEER
        and here in item.path.parents
        and "peer" not in getattr(item, "fixturenames", ())
    ]
    if repeated:
        config.hook.pytest_deselected(items=repeated)
    items[:] = [item for item in items if item not in repeated]


@pytest.fixture(scope="session")
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    name = request.config.getoption("--peer")
    with running_peer(name, tmp_path_factory.mktemp("peer")) as running:
        with connected(running.bootstrap) as client:
            client.wait_until_ready()
        yield running


@pytest.fixture(scope="session")
def bootstrap(peer: Peer) -> str:
    return peer.bootstrap


@pytest.fixture(scope="session")
def java_4_3() -> Iterator[Any]:
    with java_machine(kafka_4_3_jars()) as jvm:
        yield jvm


@pytest.fixture(scope="session")
def java_3_9() -> Iterator[Any]:
    with java_machine(kafka_3_9_jars()) as jvm:
        yield jvm


@pytest.fixture(scope="session")
def make_client(request: pytest.FixtureRequest, bootstrap: str) -> MakeClient:
    """A client by its name. Java's virtual machines start when they are first asked for."""

    def make(name: str) -> Client:
        if name == "java-4.3":
            return JavaClient(name, request.getfixturevalue("java_4_3"), bootstrap)
        if name == "java-3.9":
            return JavaClient(name, request.getfixturevalue("java_3_9"), bootstrap)
        kinds = {kind.name: kind for kind in (Confluent, KafkaPython, Aiokafka, Kcat)}
        return kinds[name](bootstrap)

    return make


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, make_client: MakeClient) -> Client:
    return make_client(request.param)


@pytest.fixture(params=ADMINS)
def admin(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Admin]:
    made: Admin
    if request.param.startswith("java"):
        machine = request.getfixturevalue(request.param.replace("-", "_").replace(".", "_"))
        made = JavaAdmin(JavaClient(request.param, machine, bootstrap), bootstrap)
    else:
        kinds = {kind.name: kind for kind in (ConfluentAdmin, KafkaPythonAdmin, AiokafkaAdmin)}
        made = kinds[request.param](bootstrap)
    yield made
    made.close()


@pytest.fixture(scope="session")
def reader(bootstrap: str) -> Confluent:
    """The client that looks at what is there, where the test is not about reading."""
    return Confluent(bootstrap)


@pytest.fixture
def raw(bootstrap: str) -> Iterator[RawClient]:
    """A client for requests that no real client would send."""
    with connected(bootstrap) as client:
        yield client


@pytest.fixture
def other_raw(bootstrap: str) -> Iterator[RawClient]:
    """A second client, with connections of its own."""
    with connected(bootstrap) as client:
        yield client


@pytest.fixture(scope="session")
def topic_name() -> Callable[[], str]:
    """Names that no other test of this session, nor an earlier session on the same broker, has used."""
    numbers = itertools.count()
    return lambda: f"compat-{os.getpid()}-{next(numbers)}"


@pytest.fixture(scope="session")
def new_topic(bootstrap: str, topic_name: Callable[[], str]) -> Iterator[NewTopic]:
    """Create a topic that all brokers know and whose leaders serve it; return its name.

    With `one_leader` the broker with the lowest id leads all partitions, and the settings are the defaults.
    """
    maker = ConfluentAdmin(bootstrap)

    def make(
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
        *,
        replicas: int = -1,
        one_leader: bool = False,
    ) -> str:
        topic = topic_name()
        with connected(bootstrap) as client:
            if one_leader:
                maker.create_placed_topic(topic, [sorted(client.brokers())] * partitions)
            else:
                maker.create_topic(topic, partitions, replication_factor=replicas, settings=settings)
            client.wait_for_leaders(topic, partitions)
        return topic

    yield make
    maker.close()
