"""What the guide shows of producer, consumer and relay runs as it stands there."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gapless.client.consuming.consumer import Consumer
from gapless.client.records import Record
from gapless.client.relaying import Relay
from tests.client.conftest import Kafka, new_topic, read_all
from tests.client.consuming.helpers import write
from tests.client.processes.common import stop_at_end

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "clients.md"
COUNT = 20


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples run for ever; here they end when all is done."""
    run, iterate, run_relay = Consumer.run, Consumer.__iter__, Relay.run

    def run_to_end(consumer: Consumer, handler: Any) -> None:
        stop_at_end(consumer)
        run(consumer, handler)

    def iterate_to_end(consumer: Consumer) -> Iterator[Record]:
        stop_at_end(consumer)
        return iterate(consumer)

    def relay_to_end(relay: Relay) -> None:
        def watch() -> None:
            while relay.relayed < COUNT:
                time.sleep(0.02)
            relay.stop()

        threading.Thread(target=watch, daemon=True).start()
        run_relay(relay)

    monkeypatch.setattr(Consumer, "run", run_to_end)
    monkeypatch.setattr(Consumer, "__iter__", iterate_to_end)
    monkeypatch.setattr(Relay, "run", relay_to_end)


@pytest.mark.usefixtures("ending")
def test_the_examples_of_the_guide_run(
    embedded: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {name: new_topic(embedded) for name in ("orders", "orders.dead", "invoices")}
    write(embedded.bootstrap, names["orders"], COUNT)
    sent = new_topic(embedded)
    assert len(examples()) == 12
    for example in examples():
        text = example.replace("localhost:9092", embedded.bootstrap)
        for name, topic in ({"orders": sent} if "Producer(" in example else names).items():
            text = text.replace(f'"{name}"', f'"{topic}"')
        exec(compile(text, str(GUIDE), "exec"), {})  # noqa: S102 - our own guide
    told = capsys.readouterr().out
    assert "000019" in told
    assert "0 undecided, 0 failed" in told
    assert len(read_all(embedded, sent)) == 2 + 100 + 100 + 1 + 1 + 1000
    assert len(read_all(embedded, names["invoices"])) == COUNT
    assert read_all(embedded, names["orders.dead"]) == []
