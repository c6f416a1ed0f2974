"""aiokafka: the asyncio client. Each call runs in an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import BrokerResponseError

from ..sample import Record, rich
from . import ANSWER_TIMEOUT_S, AS_IT_COMES, BrokerRefused, Sending


class Aiokafka:
    name = "aiokafka"
    sample = staticmethod(rich)

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        how: Sending = AS_IT_COMES,
        *,
        bootstrap: str | None = None,
    ) -> None:
        async def run() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap or self._bootstrap, **_producer_settings(how)
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                await asyncio.wait_for(asyncio.gather(*sent), ANSWER_TIMEOUT_S)
            finally:
                await producer.stop()

        _run(run())

    def read(self, topic: str, partition: int, start: int, count: int) -> list[Record]:
        async def run() -> list[Record]:
            found: list[Record] = []
            place = TopicPartition(topic, partition)
            async with self.consumer() as consumer, asyncio.timeout(ANSWER_TIMEOUT_S):
                consumer.assign([place])
                consumer.seek(place, start)
                while len(found) < count:
                    found.append(as_record(await consumer.getone(place)))
            return found

        return _run(run())

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        async def run() -> tuple[int, int]:
            place = TopicPartition(topic, partition)
            async with self.consumer() as consumer:
                first = (await consumer.beginning_offsets([place]))[place]
                return first, (await consumer.end_offsets([place]))[place]

        return _run(run())

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        async def run() -> int | None:
            place = TopicPartition(topic, partition)
            async with self.consumer() as consumer:
                found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return None if found is None else int(found.offset)

        return _run(run())

    @asynccontextmanager
    async def consumer(self, **options: object) -> AsyncIterator[Any]:
        """A consumer to assign, in no group."""
        settings = {"group_id": None, "enable_auto_commit": False, "auto_offset_reset": "none"} | options
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, **settings)
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


def _run(work: Any) -> Any:
    try:
        return asyncio.run(work)
    except BrokerResponseError as error:
        raise BrokerRefused(error.errno, error) from error


def _producer_settings(how: Sending) -> dict[str, object]:
    wanted = {
        "acks": "all",
        "compression_type": None if how.compression == "none" else how.compression,
        "enable_idempotence": how.idempotent,
        "max_batch_size": how.batch_bytes,
        "max_request_size": how.request_bytes_max,
        "request_timeout_ms": how.answer_timeout_ms,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def as_record(message: Any) -> Record:
    """What aiokafka delivered."""
    headers = tuple((name, value) for name, value in message.headers)
    return Record(message.value, message.key, headers, message.timestamp, message.partition, message.offset)
