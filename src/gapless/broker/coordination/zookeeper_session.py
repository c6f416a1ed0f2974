"""One session with ZooKeeper: found, kept through broken connections, and given up once it is lost.

A connection that breaks is made anew, and whoever waits for an answer asks again. A session that ZooKeeper
has ended cannot come back: from then on every question fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.states import KazooState, ZnodeStat

from gapless.broker.coordination.port import CannotCoordinate, JournalFailed
from gapless.errors import UsageError

log = logging.getLogger("gapless.broker")

SCHEME = "zookeeper"
DEFAULT_PORT = 2181
CONNECT_TIMEOUT_S = 10.0
TRIES_PER_SESSION = 4
LOOK_S = 0.2
"""How often whoever waits for ZooKeeper looks whether it shall go on waiting."""

# Whether it has happened is not known; the connection comes back, or the session is lost.
_UNCERTAIN = (
    *(ConnectionLoss, ConnectionClosedError, OperationTimeoutError),
    *(SessionExpiredError, SessionMovedError),
)
# What a transaction says of the steps that were all right.
_NOT_THE_CAUSE = (RolledBackError, RuntimeInconsistency)
T = TypeVar("T")


def parse_url(url: str) -> tuple[str, str]:
    """`zookeeper://host:port,host:port/path` as hosts and path, or `UsageError`."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    if parts.scheme != SCHEME or not parts.netloc or not path or "//" in path:
        raise UsageError(
            f"{url} names no place for a cluster: write zookeeper://HOST[:PORT][,HOST[:PORT]...]/PATH"
        )
    hosts = []
    for host in parts.netloc.split(","):
        name, separator, port = host.rpartition(":")
        if not separator or "]" in port:
            name, port = host, str(DEFAULT_PORT)
        if not name or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"{url}: {host!r} is not HOST or HOST:PORT")
        hosts.append(f"{name}:{port}")
    return ",".join(hosts), path


class Session:
    """What one broker asks of ZooKeeper, with patience."""

    def __init__(self, url: str, timeout_s: float, changed: Callable[[], None]) -> None:
        """`changed` is called, on a thread that must not wait, when the connection breaks or is back."""
        self.url = url
        self.hosts, self.root = parse_url(url)
        self.owner = "this process"
        self.ended = False
        self._timeout_s = timeout_s
        self._changed = changed
        self._was_connected = False
        self._lost = False
        self._interrupted = False
        self.client = self._connect()

    def _connect(self) -> Any:
        quiet = logging.getLogger("gapless.broker.kazoo")
        quiet.setLevel(logging.CRITICAL)  # what matters is told here, in our words
        client = KazooClient(
            # It waits for an answer to a connection for a session's time, shared among all hosts that it is
            # given: with one alone, an answer that a starting server never gives would cost the session.
            hosts=",".join([self.hosts] * TRIES_PER_SESSION),
            timeout=self._timeout_s,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5},
            logger=quiet,
        )
        client.add_listener(self._on_state)
        try:
            client.start(CONNECT_TIMEOUT_S)
        except client.handler.timeout_exception:
            client.close()
            raise CannotCoordinate(
                f"no ZooKeeper answers at {self.hosts} within {CONNECT_TIMEOUT_S:g} s: start it, or "
                f"correct {self.url}"
            ) from None
        return client

    def _on_state(self, state: str) -> None:
        """On the client's thread, which must not wait for ZooKeeper here."""
        if self.ended:
            return
        if state == KazooState.LOST:
            self._lost = True
        elif state == KazooState.SUSPENDED:
            log.warning(
                "the connection to ZooKeeper at %s has broken; serving on until it is back", self.hosts
            )
        elif self._was_connected and not self._lost:
            log.info("the connection to ZooKeeper at %s is back", self.hosts)
        self._was_connected = True
        self._changed()

    # ------------------------------------------------------------------------------------------- questions

    def patiently(self, operation: Callable[[], T], what: str) -> T:
        """Try until ZooKeeper has answered, however long it is away. Raises `JournalFailed`."""
        while True:
            self._wait_for_connection()
            try:
                return operation()
            except _UNCERTAIN:
                continue
            except (NoAuthError, AuthFailedError) as error:
                raise JournalFailed(f"cannot {what} {self.url}: ZooKeeper does not let us") from error
            except KazooException as error:
                raise JournalFailed(f"cannot {what} {self.url}: {reason(error)}") from error
            except ValueError as error:
                raise JournalFailed(f"the metadata journal at {self.url} is damaged: {error}") from error

    def _wait_for_connection(self) -> None:
        self._check()
        while not self.client.connected:
            time.sleep(0.01)
            self._check()

    def _check(self) -> None:
        if self._lost:
            raise JournalFailed(
                f"the session of {self.owner} at {self.url} is lost, because ZooKeeper has not heard from it "
                f"for {self._timeout_s:g} s: others may have taken its place; start it again"
            )
        if (self._interrupted or self.ended) and not self.client.connected:
            raise JournalFailed(f"stopped while ZooKeeper at {self.hosts} was not reachable")

    def get(self, result: Any) -> Any:
        """What ZooKeeper answers; gives up as soon as there is no sense in waiting."""
        while True:
            try:
                return result.get(timeout=LOOK_S)
            except self.client.handler.timeout_exception:
                self._check()

    def find(self, result: Any) -> tuple[bytes, ZnodeStat] | None:
        """A node, or None if it is not there."""
        try:
            found: tuple[bytes, ZnodeStat] = self.get(result)
        except NoNodeError:
            return None
        return found

    def commit(self, transaction: Any) -> Exception | None:
        """Do all or nothing; why it was nothing."""
        outcomes = self.get(transaction.commit_async())
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        causes = [error for error in errors if not isinstance(error, _NOT_THE_CAUSE)]
        return next(iter([*causes, *errors]), None)

    # --------------------------------------------------------------------------------------------- the end

    def interrupt(self) -> None:
        """Nobody need wait for ZooKeeper any more if it is away."""
        self._interrupted = True

    def close(self) -> None:
        """End the session."""
        self.ended = True
        self.client.stop()
        self.client.close()


def reason(error: KazooException) -> str:
    return str(error) or type(error).__name__
