"""What README.md shows in Python runs as it stands there."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless.client.consuming.consumer import Consumer
from gapless.testing.broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = Path(__file__).resolve().parents[1] / "README.md"
ORDERS = 1000


def examples(bootstrap: str, language: str = "python") -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    return [each.replace("127.0.0.1:9092", bootstrap) for each in found]


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer of the example runs for ever; here it ends when all is done."""
    run = Consumer.run

    def run_to_end(consumer: Consumer, handler: Any) -> None:
        def watch() -> None:
            deadline = time.monotonic() + 30
            while consumer.counters.handled < ORDERS and time.monotonic() < deadline:
                time.sleep(0.02)
            consumer.stop()

        threading.Thread(target=watch, daemon=True).start()
        run(consumer, handler)

    monkeypatch.setattr(Consumer, "run", run_to_end)


@pytest.mark.usefixtures("ending")
def test_the_five_lines_bill_every_order_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with EmbeddedBroker() as broker:
        produce, consume = examples(broker.bootstrap)
        for example in (produce, consume):
            exec(compile(example, str(README), "exec"), {})  # noqa: S102 - our own page
    billing = sqlite3.connect("billing.db")
    bills = dict(billing.execute("SELECT * FROM bills"))
    (count,) = billing.execute("SELECT count(*) FROM bills").fetchone()
    billing.close()
    assert bills == {
        b"%d" % number: b'{"id": %d, "amount": %d}' % (number, number % 90) for number in range(ORDERS)
    }
    assert count == ORDERS


@pytest.mark.spark
def test_the_first_five_minutes_end_with_a_clean_audit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapless.audit.auditing import audit
    from gapless.audit.tables import SinkSpec
    from gapless.pipeline import Definition, Pipeline

    monkeypatch.chdir(tmp_path)
    with EmbeddedBroker() as broker:
        exec(compile(examples(broker.bootstrap)[0], str(README), "exec"), {})  # noqa: S102 - our own page
        definition = Definition.parse(examples(broker.bootstrap, "toml")[0], "orders.toml", tmp_path)
        Pipeline(definition, spark=spark).run(once=True)
        sinks = [SinkSpec.parse(f"delta:{tmp_path / 'table'}")]
        report = audit(spark, broker.bootstrap, "orders", sinks=sinks)
    assert [hop.counts.present for hop in report.hops] == [ORDERS, ORDERS]
    assert report.verdict == "clean"
