"""A real Kafka cluster for tests, without Docker or a JVM, and faults to try it with.

    from gapless.testing import Cluster

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders")
        cluster.kill(cluster.leader("orders", 0))

Nothing is imported before it is used: neither by `import gapless.testing`, nor by the pytest plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapless.testing.broker import BrokerFailed, EmbeddedBroker
    from gapless.testing.cluster import Cluster, WaitedInVain
    from gapless.testing.proxy import Fate, FaultProxy

__all__ = ["BrokerFailed", "Cluster", "EmbeddedBroker", "Fate", "FaultProxy", "WaitedInVain"]

_HOMES = {
    "BrokerFailed": "broker",
    "Cluster": "cluster",
    "EmbeddedBroker": "broker",
    "Fate": "proxy",
    "FaultProxy": "proxy",
    "WaitedInVain": "cluster",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
