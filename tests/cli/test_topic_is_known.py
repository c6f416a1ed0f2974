"""`gapless topics create` returns once the topic can be used. No real broker can be told how soon that is."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from gapless.cli.topics import create


class Slow:
    """An admin client. It creates topics at once and lists the given answers; the last one repeats."""

    def __init__(self, *answers: Any) -> None:
        self.asked = 0
        self._answers = answers

    def create_topics(self, topics: list[NewTopic]) -> dict[str, Future[None]]:
        created: Future[None] = Future()
        created.set_result(None)
        return {topic.topic: created for topic in topics}

    def list_topics(self, timeout: float) -> Any:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if answer is None:
            raise KafkaException("not now")
        return SimpleNamespace(topics=answer)


def create_orders(admin: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "Connection", lambda *_: SimpleNamespace(admin=lambda: admin))
    create.create("orders", 2)


def test_it_waits_until_the_topic_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker first fails, then lacks the topic, then has the topic without partitions."""
    name, whole = ({"orders": SimpleNamespace(partitions=each)} for each in ({}, {0: None, 1: None}))
    admin = Slow(None, {}, name, whole)
    create_orders(admin, monkeypatch)
    assert admin.asked == 4
    assert capsys.readouterr().out == "created orders with 2 partitions\n"


def test_it_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(create, "_KNOWN_S", 0.05)
    create_orders(Slow({}), monkeypatch)
    assert capsys.readouterr().out == "created orders with 2 partitions\n"
