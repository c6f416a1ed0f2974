"""`gapless topics create` returns once the topic can be used. No real broker can be told how soon that is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from gapless.cli.topics import create


class Slow:
    """An admin whose broker hears of a topic after a while: at it cannot say, then knows only the name."""

    def __init__(self) -> None:
        whole = SimpleNamespace(partitions={0: None, 1: None})
        self.answers: list[Any] = [None, {}, {"orders": SimpleNamespace(partitions={})}, {"orders": whole}]

    def list_topics(self, timeout: float) -> Any:
        answer = self.answers.pop(0)
        if answer is None:
            raise KafkaException("not now")
        return SimpleNamespace(topics=answer)


def test_it_waits_until_the_topic_is_known() -> None:
    admin: Any = Slow()
    create._wait_until_known(admin, "orders", 2)
    assert admin.answers == []


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "_KNOWN_S", 0.05)
    admin: Any = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics={}))
    create._wait_until_known(admin, "orders", 2)
