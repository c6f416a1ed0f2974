"""Enters the package `kafka` (kafka-python) without running its `__init__`; import this before its parts.

Only its message schemas are used here, but `kafka/__init__.py` imports clients, sockets and metrics: 90 ms of
start-up and 14 MB that a broker has no use for. Should anybody in the process ask `kafka` for a name of its
own (`from kafka import KafkaConsumer`), the `__init__` is run at that moment, and from then on the package
behaves as if it had been imported the ordinary way.
"""

from __future__ import annotations

import importlib.util
import sys
from threading import RLock
from types import ModuleType

_completing = RLock()


class _CompletedOnDemand(ModuleType):
    """A package whose submodules import at once, and whose own names run its `__init__` first."""

    def __getattr__(self, name: str) -> object:
        with _completing:
            spec = self.__dict__["__spec__"]
            # A name that __init__ itself misses while it runs (the lock is ours then) is simply missing.
            if not name.startswith("__") and spec.loader_state is None:
                spec.loader_state = "running"
                spec.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _enter() -> None:
    if "kafka" in sys.modules:
        return
    spec = importlib.util.find_spec("kafka")
    if spec is None or spec.loader is None:
        raise ImportError("the package kafka-python is missing: pip install kafka-python")
    package = importlib.util.module_from_spec(spec)
    package.__class__ = _CompletedOnDemand
    sys.modules["kafka"] = package


_enter()
