"""`gapless up --brokers N`: one process per broker, watched over by this one until all shall stop.

Brokers are forked from a process that has loaded all code and done nothing else: they start at once and
share the memory of the code. This process never runs an event loop or a thread, so it can fork a dead broker
anew at any time. A broker ends when this process does, however that happens: it sees the pipe close.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from gapless.broker import server
from gapless.broker.server import CannotServe, Options
from gapless.errors import GaplessError, UsageError

log = logging.getLogger("gapless.broker")

RESTART_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""A broker that dies again and again is brought back less and less often ..."""
SETTLED_AFTER_S = 30.0
"""... unless it has lived for so long."""
STOP_TIMEOUT_S = 60.0
"""A broker that has not stopped by then is killed."""
REPORT_WAIT_AFTER_S = 10.0
"""How long the supervisor waits in silence for a broker to start or to stop."""
_ENDED_AT_START = tuple(-number for number in server.STOP_SIGNALS)
"""Exit codes of a broker that a signal ended before it had begun: see `_reset_signals`."""


@dataclass(slots=True)
class _Broker:
    """One broker, running or not."""

    options: Options
    pid: int = 0
    address: str | None = None
    news: int = -1
    """The pipe on which it says that it is ready, or why it cannot be."""
    started: float = 0.0
    report_at: float = 0.0
    """When the supervisor next logs that this broker is not ready."""
    deaths: int = 0
    restart_at: float | None = None

    @property
    def node_id(self) -> int:
        return self.options.node_id or 0

    @property
    def is_starting(self) -> bool:
        return self.news >= 0

    def __str__(self) -> str:
        return f"broker {self.node_id} (process {self.pid})"


def run(options: Sequence[Options], *, restart: bool, announce: Callable[[str], None]) -> None:
    """Run one broker per entry until SIGTERM or SIGINT; `announce` gets all addresses, comma-separated."""
    Supervisor(options, restart, announce).run()


class Supervisor:
    """The parent of all brokers."""

    def __init__(self, options: Sequence[Options], restart: bool, announce: Callable[[str], None]) -> None:
        self._ready_file = options[0].ready_file
        self._restart = restart
        self._announce = announce
        self._lifeline, self._alive = os.pipe()
        self._brokers = [_Broker(replace(each, ready_file=None, lifeline=self._lifeline)) for each in options]
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._told = False

    def run(self) -> None:
        """See `run` above."""
        server.forget_ready(self._ready_file)
        gc.collect()
        gc.freeze()  # collections in the brokers then leave the shared pages alone
        with self._signals():
            try:
                for broker in self._brokers:
                    self._start(broker)
                while not self._stopping:
                    self._wait()
            finally:
                try:
                    server.forget_ready(self._ready_file)
                finally:
                    self._stop_all()

    # ------------------------------------------------------------------------------------------- signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Every signal becomes a byte in a pipe that `_wait` looks at."""
        receiver, sender = os.pipe()
        os.set_blocking(receiver, False)
        os.set_blocking(sender, False)
        signal.set_wakeup_fd(sender)
        for number in (*server.STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._selector.register(receiver, selectors.EVENT_READ)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)

    def _wait(self) -> None:
        """Until the next thing happens, and what follows from it."""
        due = [broker.restart_at for broker in self._brokers if broker.restart_at is not None]
        due += [broker.report_at for broker in self._brokers if broker.is_starting]
        timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
        for key, _ in self._selector.select(timeout_s):
            if not isinstance(key.data, _Broker):
                self._on_signals(os.read(key.fd, 4096))
            elif key.data.news == key.fd:
                # Otherwise the death of the broker was processed in this loop, and with it its pipe.
                self._on_news(key.data)
        now = time.monotonic()
        self._report_slow_starts(now)
        for broker in self._brokers:
            if broker.restart_at is not None and broker.restart_at <= now and not self._stopping:
                broker.restart_at = None
                self._start(broker)

    def _report_slow_starts(self, now: float) -> None:
        """Log which brokers are not ready, at growing intervals: a large recovery takes minutes."""
        due = [broker for broker in self._brokers if broker.is_starting and broker.report_at <= now]
        for broker in due:
            waited_s = now - broker.started
            broker.report_at = now + waited_s
            log.warning("%s is not ready after %.0f s", broker, waited_s)

    def _on_signals(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._stopping = True
            log.info("stopping all brokers")
            return
        for broker in self._brokers:
            if broker.pid:
                pid, status = os.waitpid(broker.pid, os.WNOHANG)
                if pid:
                    self._on_death(broker, status)

    # ------------------------------------------------------------------------------------------- brokers

    def _start(self, broker: _Broker) -> None:
        broker.news, says = os.pipe()
        broker.started = time.monotonic()
        broker.report_at = broker.started + REPORT_WAIT_AFTER_S
        # The new process has this process's signal handlers, which only write to this process's pipe. A
        # signal that reached it before it has replaced them would be lost, and nothing else would stop it.
        signal.pthread_sigmask(signal.SIG_BLOCK, server.STOP_SIGNALS)
        try:
            broker.pid = os.fork()
            if broker.pid == 0:
                os.close(broker.news)
                _be(
                    broker.options,
                    _News(says),
                    [self._alive, *(each.news for each in self._brokers if each is not broker)],
                )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, server.STOP_SIGNALS)
        os.close(says)
        self._selector.register(broker.news, selectors.EVENT_READ, broker)

    def _on_news(self, broker: _Broker) -> None:
        news = self._read_news(broker)
        if not news:
            return  # it has died; that is told in another way
        if "address" not in news:
            if not self._told:
                raise CannotServe(f"broker {broker.node_id} cannot start: {news['error']}")
            log.error("broker %d cannot start: %s", broker.node_id, news["error"])
            return
        broker.address = news["address"]
        # It comes back under the same address, and need not wait for anybody then.
        broker.options = replace(broker.options, port=news["port"], awaits_others=False)
        if all(each.address for each in self._brokers):
            if not self._told:
                addresses = ",".join(each.address or "" for each in self._brokers)
                server.tell_ready(self._ready_file, addresses, self._announce)
                self._told = True
            else:
                log.info("broker %d is back at %s", broker.node_id, broker.address)

    def _on_death(self, broker: _Broker, status: int) -> None:
        how = _describe_end(os.waitstatus_to_exitcode(status))
        broker.pid = 0
        if broker.is_starting:
            self._on_news(broker)
        if not self._told:
            raise CannotServe(f"broker {broker.node_id} {how} before it was ready; what it said is above")
        lived_s = time.monotonic() - broker.started
        broker.deaths = 0 if lived_s > SETTLED_AFTER_S else broker.deaths + 1
        if self._restart:
            delay_s = RESTART_DELAYS_S[min(max(broker.deaths - 1, 0), len(RESTART_DELAYS_S) - 1)]
            log.warning(
                "broker %d %s; it is started again%s",
                broker.node_id,
                how,
                f" in {delay_s:.0f} s" * (delay_s > 0),
            )
            broker.restart_at = time.monotonic() + delay_s
            return
        log.warning("broker %d %s; bring it back with: %s", broker.node_id, how, _revival(broker.options))
        if not any(each.pid for each in self._brokers):
            raise CannotServe("all brokers have ended")

    def _read_news(self, broker: _Broker) -> dict[str, Any]:
        """Return a broker's only message, or nothing if it has ended without one; close its pipe."""
        line = os.read(broker.news, 65536)
        self._selector.unregister(broker.news)
        os.close(broker.news)
        broker.news = -1
        return json.loads(line) if line else {}

    def _stop_all(self) -> None:
        """SIGINT: when all go, leadership need not move to and fro."""
        running = [broker for broker in self._brokers if broker.pid]
        started = time.monotonic()
        for broker in running:
            _signal(broker.pid, signal.SIGINT)
        codes = {broker.node_id: _await_end(broker, started) for broker in running}
        failed = {number: code for number, code in codes.items() if code not in (0, *_ENDED_AT_START)}
        if failed and self._stopping:
            for broker in running:
                error = self._read_news(broker).get("error") if broker.is_starting else None
                if error is not None:
                    log.error("broker %d cannot start: %s", broker.node_id, error)
            how = ", ".join(f"broker {number} {_describe_end(code)}" for number, code in failed.items())
            raise CannotServe(f"not all brokers stopped cleanly: {how}; what they said is above")


def _await_end(broker: _Broker, since: float) -> int:
    """Wait until a broker has ended, and return its exit code.

    It gets SIGKILL when STOP_TIMEOUT_S have passed `since` it was told to stop. A process that waits for a
    broken disk survives even that. Whatever takes long is logged.
    """
    report_at, is_killed = since + REPORT_WAIT_AFTER_S, False
    while True:
        ended, status = os.waitpid(broker.pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if not is_killed and now - since > STOP_TIMEOUT_S:
            log.error("%s has not stopped within %.0f s and is killed", broker, STOP_TIMEOUT_S)
            _signal(broker.pid, signal.SIGKILL)
            is_killed = True
        elif now > report_at:
            report_at = now + REPORT_WAIT_AFTER_S
            log.warning("waiting for %s to %s", broker, "end after SIGKILL" if is_killed else "stop")
        time.sleep(0.005)


def _describe_end(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code}"
    return f"ended with code {code}" if code else "stopped"


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _revival(options: Options) -> str:
    where = f"{options.data_dir}"
    if options.coordination is not None:
        where = f"{options.coordination} --data {options.data_dir}"
    return (
        f"gapless up --join {where} --node-id {options.node_id} --host {options.host} --port {options.port}"
    )


class _News:
    """A broker's end of the pipe on which the supervisor learns whether it has started."""

    def __init__(self, pipe: int) -> None:
        self._pipe: int | None = pipe

    def send(self, **news: str | int) -> bool:
        """Send the only message, and close the pipe. Return whether the supervisor can receive it."""
        if self._pipe is None:
            return False
        # Its number may soon belong to another file, which must not be taken for this pipe.
        pipe, self._pipe = self._pipe, None
        try:
            os.write(pipe, json.dumps(news).encode())
        except BrokenPipeError:
            return False  # the supervisor has ended: the lifeline stops this broker
        finally:
            os.close(pipe)
        return True


def _be(options: Options, news: _News, others: Sequence[int]) -> NoReturn:
    """In the new process: be a broker, and nothing of what the parent is."""
    code = 70
    try:
        _reset_signals()
        for file in others:
            if file >= 0:
                os.close(file)
        for handler in logging.getLogger().handlers:
            handler.setFormatter(
                logging.Formatter(
                    f"%(asctime)s %(levelname)s broker {options.node_id}: %(message)s", "%H:%M:%S"
                )
            )

        def ready(address: str, port: int) -> None:
            news.send(address=address, port=port)

        try:
            server.run(options, ready)
            code = 0
        except GaplessError as error:
            code = int(error.exit_code)
            if not news.send(error=str(error)):
                log.error("%s", error)  # noqa: TRY400 -- the line says it all
    except BaseException:
        logging.getLogger("gapless.broker").exception("a bug has ended broker %s", options.node_id)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reset_signals() -> None:
    """Let a stop signal end this process at once, until `server.run` has its own handlers.

    A broker that has not begun has nothing to hand over or to close. Some of what it does before may take
    long (it may wait for ZooKeeper), and cannot be interrupted in another way.
    """
    signal.set_wakeup_fd(-1)
    for number in (*server.STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, server.STOP_SIGNALS)


def check(options: Options, brokers: int) -> None:
    """Refuse what makes no sense with several brokers."""
    if options.port and options.port + brokers - 1 > 65535:
        raise UsageError(f"--port {options.port}: there are no {brokers} ports from there on")
    if options.advertise is not None and ":" in options.advertise.rpartition("]")[2]:
        raise UsageError("--advertise takes no port with --brokers: each broker has its own")


def spread(first: Options, brokers: int) -> list[Options]:
    """The options of each of several brokers: numbers from 1, ports one after the other."""
    check(first, brokers)
    return [
        replace(
            first,
            node_id=number + 1,
            port=first.port and first.port + number,
            metrics_port=first.metrics_port and first.metrics_port + number,
            cluster_size=brokers,
            awaits_others=True,
        )
        for number in range(brokers)
    ]
