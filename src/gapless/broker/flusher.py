"""Group commit: one fsync per partition at a time, on worker threads, for everybody who asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gapless.core.contract import DiskFailed, Flushed, TopicPartition
from gapless.core.log import LogFailed
from gapless.storage.file_log import FileLog

FLUSH_THREADS = 4


class Flusher:
    """Runs flushes and reports them as events."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        find: Callable[[TopicPartition], FileLog | None],
        report: Callable[[Flushed | DiskFailed], None],
    ) -> None:
        self._loop = loop
        self._find = find
        self._report = report
        self._threads = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="flush")
        self._running: dict[TopicPartition, int] = {}

    def flush(self, partition: TopicPartition, offset: int) -> None:
        """Make a log durable up to `offset`; asked again while it runs, it runs once more."""
        if partition in self._running:
            self._running[partition] = max(self._running[partition], offset)
            return
        self._start(partition, offset)

    def _start(self, partition: TopicPartition, offset: int) -> None:
        log = self._find(partition)
        if log is None:
            return
        try:
            job = log.prepare_flush()
        except LogFailed as error:
            self._report(DiskFailed(partition, str(error)))
            return
        if job is None:
            self._report(Flushed(partition, log.flushed_offset))
            return
        self._running[partition] = offset
        future = self._loop.run_in_executor(self._threads, job.run)

        def finished(done: asyncio.Future[None]) -> None:
            wanted = self._running.pop(partition)
            error = done.exception()
            if error is not None:
                if not isinstance(error, LogFailed):
                    raise error
                self._report(DiskFailed(partition, str(error)))
                return
            log.flushed(job)
            if wanted > job.offset:
                self._start(partition, wanted)
            self._report(Flushed(partition, job.offset))

        future.add_done_callback(finished)

    def close(self) -> None:
        """Wait for what runs."""
        self._threads.shutdown(wait=True)
