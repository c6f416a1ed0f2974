"""Coordination for brokers of several machines, through ZooKeeper.

    PATH/id                  the cluster's id
    PATH/journal/0000000007  one change; the one after it can be created only once
    PATH/snapshot            what the changes up to a version amount to
    PATH/parts/WRITER-0      pieces of a change or a snapshot that is too large for one node
    PATH/brokers/N           the session of broker N: an ephemeral node that says which process it is
    PATH/known/N             that there is or was a broker N
    PATH/announced           written after each change: who watches it looks at the journal again

A session ends with its process if that is on this machine, or when ZooKeeper has not heard from it for the
session's timeout. A broker whose session has ended must stop: others may have taken its place. As long as
ZooKeeper itself is away nobody can decide anything, so brokers serve on and wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat

from gapless.broker.coordination.blobs import Header, pack, unpack
from gapless.broker.coordination.owner import Owner
from gapless.broker.coordination.port import (
    COMPACT_AFTER_CHANGES,
    KEPT_CHANGES,
    CannotCoordinate,
    JournalFailed,
    JournalMoved,
    NodeIdInUse,
)
from gapless.core.records import MetadataRecord
from gapless.errors import UsageError

log = logging.getLogger("gapless.broker")

SCHEME = "zookeeper"
DEFAULT_PORT = 2181
POLL_S = 1.0
LOOK_S = 0.2
"""How often whoever waits for ZooKeeper looks whether it shall go on waiting."""
CONNECT_TIMEOUT_S = 10.0
SESSION_TIMEOUT_S = 6.0
MAX_BATCH = 256

# Whether it happened is not known; the connection comes back, or the session is lost.
_UNCERTAIN = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
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


class ZooKeeperCoordination:
    """See `port.Coordination`."""

    def __init__(self, url: str, session_timeout_s: float = SESSION_TIMEOUT_S) -> None:
        self._hosts, self._root = parse_url(url)
        self._url = url
        self._session_timeout_s = session_timeout_s
        self._node_id = -1
        self._writer = uuid4().hex
        self._written = 0
        self._lost = False
        self._interrupted = False
        self._closing = False
        self._owners: dict[int, Owner] = {}
        self._owners_zxid = -1
        self._owners_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved: Callable[[], None] = lambda: None
        self._poll: asyncio.TimerHandle | None = None
        self._client = self._connect()
        try:
            self._lay_out()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------------ the connection

    def _connect(self) -> Any:
        quiet = logging.getLogger("gapless.broker.kazoo")
        quiet.setLevel(logging.CRITICAL)  # what matters is told here, in our words
        client = KazooClient(
            hosts=self._hosts,
            timeout=self._session_timeout_s,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5},
            logger=quiet,
        )
        client.add_listener(self._on_connection)
        try:
            client.start(CONNECT_TIMEOUT_S)
        except client.handler.timeout_exception:
            client.close()
            raise CannotCoordinate(
                f"no ZooKeeper answers at {self._hosts} within {CONNECT_TIMEOUT_S:.0f} s: start it, or "
                f"correct {self._url}"
            ) from None
        return client

    def _lay_out(self) -> None:
        """Make the nodes that are always there."""
        first = pack("", [])[0]
        try:
            for name in ("journal", "parts", "brokers", "known"):
                self._client.ensure_path(f"{self._root}/{name}")
            # Who finds the first change compacted away must not begin the history anew.
            for name, data in (("announced", b""), ("snapshot", Header("", 0).to_bytes())):
                with contextlib.suppress(NodeExistsError):
                    self._client.create(f"{self._root}/{name}", data)
            if Header.from_bytes(self._client.get(self._node("snapshot"))[0]).kept_from == 0:
                with contextlib.suppress(NodeExistsError):
                    self._client.create(self._entry(0), first)
        except NoAuthError:
            raise CannotCoordinate(
                f"ZooKeeper does not let us write to {self._root}: allow it there, or choose another path "
                f"than that of {self._url}"
            ) from None
        except KazooException as error:
            raise CannotCoordinate(f"cannot use {self._url}: {_reason(error)}; try again") from error

    def _on_connection(self, state: str) -> None:
        """On the client's thread, which must not wait for ZooKeeper here."""
        if self._closing:
            return
        if state == KazooState.LOST:
            self._lost = True
        elif state == KazooState.SUSPENDED:
            log.warning(
                "the connection to ZooKeeper at %s has broken; serving on until it is back", self._hosts
            )
        elif self._node_id >= 0 and not self._lost:
            log.info("connected to ZooKeeper at %s", self._hosts)
        self._nudge()  # the next read finds out what was missed, or that the session is lost

    def _patiently(self, operation: Callable[[], T], what: str) -> T:
        """Try until ZooKeeper has answered, however long it is away."""
        while True:
            self._wait_for_connection()
            try:
                return operation()
            except _UNCERTAIN:
                continue
            except (NoAuthError, AuthFailedError) as error:
                raise JournalFailed(f"cannot {what} {self._url}: ZooKeeper does not let us") from error
            except KazooException as error:
                raise JournalFailed(f"cannot {what} {self._url}: {_reason(error)}") from error
            except ValueError as error:
                raise JournalFailed(f"the metadata journal at {self._url} is damaged: {error}") from error

    def _wait_for_connection(self) -> None:
        self._check()
        while not self._client.connected:
            time.sleep(0.01)
            self._check()

    def _check(self) -> None:
        if self._lost:
            raise JournalFailed(
                f"the session of broker {self._node_id} at {self._url} is lost, because ZooKeeper has not "
                f"heard from it for {self._session_timeout_s:g} s: others may have taken its place; start it "
                "again"
            )
        if (self._interrupted or self._closing) and not self._client.connected:
            raise JournalFailed(f"stopped while ZooKeeper at {self._hosts} was not reachable")

    def _get(self, result: Any) -> Any:
        """What ZooKeeper answers; gives up as soon as there is no sense in waiting."""
        while True:
            try:
                return result.get(timeout=LOOK_S)
            except self._client.handler.timeout_exception:
                self._check()

    def _find(self, result: Any) -> tuple[bytes, ZnodeStat] | None:
        try:
            found: tuple[bytes, ZnodeStat] = self._get(result)
        except NoNodeError:
            return None
        return found

    def _node(self, *names: object) -> str:
        return "/".join((self._root, *map(str, names)))

    def _entry(self, version: int) -> str:
        return f"{self._root}/journal/{version:010d}"

    # -------------------------------------------------------------------------------------- the journal

    @property
    def cluster_id(self) -> str:
        """See `port.Coordination`."""
        # Kafka's form of an id, never beginning with "-": its tools would take that for an option.
        proposed = urlsafe_b64encode(b"\0" + uuid4().bytes[1:]).rstrip(b"=")

        def ask() -> str:
            with contextlib.suppress(NodeExistsError):
                self._get(self._client.create_async(self._node("id"), proposed))
            return bytes(self._get(self._client.get_async(self._node("id")))[0]).decode()

        return self._patiently(ask, "read")

    def read(self, after_version: int) -> tuple[int, list[MetadataRecord]]:
        """See `port.Coordination`."""

        def read() -> tuple[int, list[MetadataRecord]] | None:
            try:
                return self._read(after_version)
            except NoNodeError:
                return None  # what was about to be read has been compacted away

        while (found := self._patiently(read, "read")) is None:
            pass
        return found

    def _read(self, version: int) -> tuple[int, list[MetadataRecord]]:
        """One connection keeps the order of all this, so nothing is waited for before it is needed."""
        client = self._client
        client.sync_async(self._root)  # this server may lag behind the others
        client.get_async(self._node("announced"), watch=self._on_announced)
        snapshot, _ = self._get(client.get_async(self._node("snapshot")))
        header = Header.from_bytes(snapshot)
        records: list[MetadataRecord] = []
        if version == 0 and header.version > 0:
            version, records = header.version, self._load(snapshot)
        batch = 1
        while True:
            results = [client.get_async(self._entry(version + 1 + ahead)) for ahead in range(batch)]
            # After the changes: who has registered in one of them is then not taken for dead.
            sessions = client.get_children_async(self._node("brokers"), self._on_sessions, include_data=True)
            for result in results:
                found = self._find(result)
                if found is None:
                    if version < header.version:
                        raise self._forgotten(version)
                    self._note_sessions(*self._get(sessions))
                    return version, records
                records += self._load(found[0])
                version += 1
            batch = min(batch * 4, MAX_BATCH)

    def _load(self, data: bytes) -> list[MetadataRecord]:
        header = Header.from_bytes(data)
        names = [self._node("parts", f"{header.writer}-{number}") for number in range(header.parts)]
        results = [self._client.get_async(name) for name in names]
        return unpack(data, [self._get(result)[0] for result in results])

    def _forgotten(self, version: int) -> JournalFailed:
        return JournalFailed(
            f"the metadata journal at {self._url} has forgotten what followed version {version}: "
            "this broker was away for too long; start it again"
        )

    def append(self, expected_version: int, records: Sequence[MetadataRecord]) -> int:
        """See `port.Coordination`."""
        writer = self._next_writer()
        data, *parts = pack(writer, records)
        self._write_parts(writer, parts)
        if not self._patiently(lambda: self._append(expected_version, writer, data), "write"):
            self._delete_parts(writer, len(parts))
            raise JournalMoved(f"the journal has moved on from version {expected_version}")
        return expected_version + 1

    def _append(self, version: int, writer: str, data: bytes) -> bool:
        """Whether the next change is ours, now or since an attempt whose outcome we did not hear of."""
        change = self._client.transaction()
        change.check(self._entry(version), -1)  # it may have been compacted away, and the next one with it
        change.create(self._entry(version + 1), data)
        outcomes = self._get(change.commit_async())
        if not any(isinstance(outcome, Exception) for outcome in outcomes):
            return True
        for outcome in outcomes:
            if isinstance(outcome, NodeExistsError):
                found = self._find(self._client.get_async(self._entry(version + 1)))
                return found is not None and Header.from_bytes(found[0]).writer == writer
            if isinstance(outcome, NoNodeError):
                return False
        raise next(outcome for outcome in outcomes if isinstance(outcome, Exception))

    def compact(self, version: int, records: Sequence[MetadataRecord]) -> None:
        """See `port.Coordination`."""

        def newest() -> tuple[bytes, ZnodeStat]:
            found: tuple[bytes, ZnodeStat] = self._get(self._client.get_async(self._node("snapshot")))
            return found

        data, stat = self._patiently(newest, "read")
        old = Header.from_bytes(data)
        if version < old.version + COMPACT_AFTER_CHANGES:
            return
        writer = self._next_writer()
        # What the last one has removed is removed again, in case that it did not come to its end.
        kept_from = max(old.kept_from, version - KEPT_CHANGES + 1)
        new, *parts = pack(writer, records, version=version, kept_from=kept_from, removed_from=old.kept_from)
        self._write_parts(writer, parts)

        def replace() -> bool:
            try:
                self._get(self._client.set_async(self._node("snapshot"), new, stat.version))
            except BadVersionError:
                found, _ = newest()
                return Header.from_bytes(found).writer == writer
            return True

        if not self._patiently(replace, "write"):
            self._delete_parts(writer, len(parts))
            return
        self._delete_parts(old.writer, old.parts)
        self._patiently(lambda: self._remove(range(old.removed_from, kept_from)), "compact")

    def _remove(self, versions: range) -> None:
        for start in range(versions.start, versions.stop, MAX_BATCH):
            names = [self._entry(number) for number in range(start, min(start + MAX_BATCH, versions.stop))]
            found = [self._find(result) for result in [self._client.get_async(name) for name in names]]
            headers = [Header.from_bytes(each[0]) for each in found if each is not None]
            self._delete(names)
            for header in headers:
                self._delete_parts(header.writer, header.parts)

    # --------------------------------------------------------------------------------------- large changes

    def _next_writer(self) -> str:
        self._written += 1
        return f"{self._writer}-{self._written}"

    def _write_parts(self, writer: str, parts: Sequence[bytes]) -> None:
        for number, part in enumerate(parts):
            path = self._node("parts", f"{writer}-{number}")

            def write(path: str = path, part: bytes = part) -> None:
                with contextlib.suppress(NodeExistsError):
                    self._get(self._client.create_async(path, part))

            self._patiently(write, "write")

    def _delete_parts(self, writer: str, count: int) -> None:
        self._delete([self._node("parts", f"{writer}-{number}") for number in range(count)])

    def _delete(self, paths: Sequence[str]) -> None:
        def delete() -> None:
            for result in [self._client.delete_async(path) for path in paths]:
                with contextlib.suppress(NoNodeError):
                    self._get(result)

        self._patiently(delete, "compact")

    # ----------------------------------------------------------------------------------------- sessions

    def claim(self, node_id: int) -> None:
        """See `port.Coordination`."""
        self._patiently(lambda: self._client.ensure_path(self._node("known", node_id)), "write")
        deadline = time.monotonic() + 2 * self._session_timeout_s
        while not self._patiently(lambda: self._claim(node_id), "write"):
            if time.monotonic() > deadline:
                raise self._in_use(node_id)
            time.sleep(0.02)  # the session of a process of another machine may still come to its end
        self._node_id = node_id

    def _claim(self, node_id: int) -> bool:
        """Whether the session is ours. That of a process that is certainly gone is replaced."""
        client, session, known = self._client, self._node("brokers", node_id), self._node("known", node_id)
        _, claims = self._get(client.get_async(known))
        found = self._find(client.get_async(session))
        change = client.transaction()
        change.set_data(known, b"", claims.version)  # of several who find the same, one goes on
        if found is not None:
            owner = Owner.from_bytes(found[0])
            if found[1].owner_session_id == client.client_id[0]:
                return True  # an attempt whose outcome we did not hear of
            if owner.is_here() and not owner.is_gone():
                raise self._in_use(node_id)
            if not owner.is_gone():
                return False
            change.delete(session)
        change.create(session, Owner.me().to_bytes(), ephemeral=True)
        return not any(isinstance(outcome, Exception) for outcome in self._get(change.commit_async()))

    def _in_use(self, node_id: int) -> NodeIdInUse:
        return NodeIdInUse(
            f"broker {node_id} of {self._url} is in use by another broker: stop it, or choose another number "
            "with --node-id"
        )

    def taken(self) -> set[int]:
        """See `port.Coordination`."""
        names = self._patiently(
            lambda: self._get(self._client.get_children_async(self._node("known"))), "read"
        )
        return {int(name) for name in names}

    def is_dead(self, node_id: int) -> bool:
        """See `port.Coordination`."""
        if self._owners_zxid < 0:
            return False  # nobody has asked yet
        owner = self._owners.get(node_id)
        return owner is None or owner.is_gone()

    def _note_sessions(self, names: Sequence[str], parent: ZnodeStat) -> None:
        """Take in who has a session, unless that is known already or something newer is."""
        with self._owners_lock:
            if parent.pzxid <= self._owners_zxid:
                return
            results = [(int(name), self._client.get_async(self._node("brokers", name))) for name in names]
            found = [(node_id, self._find(result)) for node_id, result in results]
            self._owners = {node_id: Owner.from_bytes(each[0]) for node_id, each in found if each is not None}
            self._owners_zxid = parent.pzxid
        self._nudge()

    # ------------------------------------------------------------------------------------------- nudges

    def watch(self, loop: asyncio.AbstractEventLoop, moved: Callable[[], None]) -> None:
        """See `port.Coordination`."""
        self._loop, self._moved = loop, moved

        def poll() -> None:
            self._poll = loop.call_later(POLL_S, poll)
            moved()

        self._poll = loop.call_later(POLL_S, poll)
        loop.call_soon(moved)  # what has happened before this call was told to nobody

    def _nudge(self) -> None:
        if self._loop is not None and not self._closing:
            with contextlib.suppress(RuntimeError):  # the loop may have ended
                self._loop.call_soon_threadsafe(self._moved)

    def _on_announced(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self._nudge()  # and the read that follows watches again

    def _on_sessions(self, event: WatchedEvent) -> None:
        if event.type == EventType.NONE or self._closing or self._lost:
            return
        path = self._node("brokers")
        # If this fails the connection is broken: the next read asks again.
        with contextlib.suppress(KazooException, JournalFailed):
            result = self._client.get_children_async(path, self._on_sessions, include_data=True)
            self._note_sessions(*self._get(result))

    def announce(self) -> None:
        """See `port.Coordination`."""
        self._client.set_async(self._node("announced"), str(self._node_id).encode())

    # -------------------------------------------------------------------------------------------- the end

    def interrupt(self) -> None:
        """See `port.Coordination`."""
        self._interrupted = True

    def close(self) -> None:
        """See `port.Coordination`."""
        self._closing = True
        if self._poll is not None:
            self._poll.cancel()
        self._client.stop()
        self._client.close()


def _reason(error: KazooException) -> str:
    return str(error) or type(error).__name__
