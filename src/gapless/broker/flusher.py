"""Group commit: one fsync per partition at a time, on worker threads, for everybody who asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gapless.core.contract import DiskFailed, Flushed, TopicPartition
from gapless.core.log import LogFailed
from gapless.storage.file_log import FileLog
from gapless.storage.flush import FlushJob

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
        self._jobs: set[asyncio.Future[None]] = set()
        self.flushes = 0
        """How many have been started since the broker runs."""

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
        self.flushes += 1
        future = self._loop.run_in_executor(self._threads, job.run)
        self._jobs.add(future)

        def finished(done: asyncio.Future[None]) -> None:
            self._jobs.discard(done)
            self._finished(partition, log, job, done.exception())

        future.add_done_callback(finished)

    def _finished(
        self, partition: TopicPartition, log: FileLog, job: FlushJob, error: BaseException | None
    ) -> None:
        wanted = self._running.pop(partition)
        if error is not None and not isinstance(error, LogFailed):
            raise error
        if self._find(partition) is not log:
            # The topic was deleted meanwhile. What was flushed says nothing of a new one of that name.
            self._start(partition, wanted)
        elif error is not None:
            self._report(DiskFailed(partition, str(error)))
        else:
            log.flushed(job)
            if wanted > job.offset:
                self._start(partition, wanted)
            self._report(Flushed(partition, job.offset))

    async def close(self) -> None:
        """Wait for what runs, and for what that leads to."""
        while self._jobs:
            await asyncio.wait(self._jobs)
        self._threads.shutdown(wait=True)
