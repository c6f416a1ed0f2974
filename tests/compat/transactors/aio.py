"""aiokafka: the older protocol. Its event loop runs in a thread, as long as the producer lives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, ProducerFenced

from ..clients import ANSWER_TIMEOUT_S
from . import Fenced


class AiokafkaTransactor:
    name = "aiokafka"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._sent: list[Any] = []
        self._producer: Any = self._run(self._make(bootstrap, transactional_id, timeout_ms))

    @staticmethod
    async def _make(bootstrap: str, transactional_id: str, timeout_ms: int) -> Any:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            acks="all",
        )
        await producer.start()
        return producer

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_TIMEOUT_S)
        except (ProducerFenced, InvalidProducerEpoch) as error:
            raise Fenced(str(error)) from error

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._sent.append(self._run(self._producer.send(topic, value=value, partition=partition)))

    def flush(self) -> None:
        async def wait() -> None:
            await asyncio.gather(*self._sent)

        self._run(wait())
        self._sent.clear()

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        self._run(
            self._producer.send_offsets_to_transaction({TopicPartition(topic, partition): offset}, group)
        )

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.client.close())
        sender = self._producer._sender

        async def stop() -> None:
            if sender.sender_task is not None:
                sender.sender_task.cancel()
                await asyncio.gather(sender.sender_task, return_exceptions=True)
            self._producer._closed = True

        self._run(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_TIMEOUT_S)
        self._loop.close()
