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
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from uuid import uuid4

from kazoo.exceptions import BadVersionError, KazooException, NoAuthError, NodeExistsError, NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat

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
from gapless.broker.coordination.zookeeper_session import Session, reason
from gapless.core.records import MetadataRecord

POLL_S = 1.0
SESSION_TIMEOUT_S = 10.0
MAX_BATCH = 256
"""So many nodes are asked for at a time."""


class ZooKeeperCoordination:
    """See `port.Coordination`."""

    def __init__(self, url: str, session_timeout_s: float = SESSION_TIMEOUT_S) -> None:
        self._session_timeout_s = session_timeout_s
        self._node_id = -1
        self._writer = uuid4().hex
        self._written = 0
        self._owners: dict[int, Owner] = {}
        self._owners_zxid = -1
        self._owners_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved: Callable[[], None] = lambda: None
        self._poll: asyncio.TimerHandle | None = None
        self._session = Session(url, session_timeout_s, self._nudge)
        self._client = self._session.client
        self._root, self._url = self._session.root, url
        try:
            self._lay_out()
        except BaseException:
            self.close()
            raise

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
            raise CannotCoordinate(f"cannot use {self._url}: {reason(error)}; try again") from error

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
                self._session.get(self._client.create_async(self._node("id"), proposed))
            return bytes(self._session.get(self._client.get_async(self._node("id")))[0]).decode()

        return self._session.patiently(ask, "read")

    def read(self, after_version: int) -> tuple[int, list[MetadataRecord]]:
        """See `port.Coordination`."""

        def read() -> tuple[int, list[MetadataRecord]] | None:
            try:
                return self._read(after_version)
            except NoNodeError:
                return None  # what was about to be read has been compacted away

        while (found := self._session.patiently(read, "read")) is None:
            pass
        return found

    def _read(self, version: int) -> tuple[int, list[MetadataRecord]]:
        """One connection keeps the order of all this, so nothing is waited for before it is needed."""
        client = self._client
        client.sync_async(self._root)  # this server may lag behind the others
        client.get_async(self._node("announced"), watch=self._on_announced)
        snapshot, _ = self._session.get(client.get_async(self._node("snapshot")))
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
                found = self._session.find(result)
                if found is None:
                    if version < header.version:
                        raise self._forgotten(version)
                    self._note_sessions(*self._session.get(sessions))
                    return version, records
                records += self._load(found[0])
                version += 1
            batch = min(batch * 4, MAX_BATCH)

    def _load(self, data: bytes) -> list[MetadataRecord]:
        header = Header.from_bytes(data)
        names = [self._node("parts", f"{header.writer}-{number}") for number in range(header.parts)]
        results = [self._client.get_async(name) for name in names]
        return unpack(data, [self._session.get(result)[0] for result in results])

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
        if not self._session.patiently(lambda: self._append(expected_version, writer, data), "write"):
            self._delete_parts(writer, len(parts))
            raise JournalMoved(f"the journal has moved on from version {expected_version}")
        return expected_version + 1

    def _append(self, version: int, writer: str, data: bytes) -> bool:
        """Whether the next change is ours, now or since an attempt whose outcome we did not hear of."""
        change = self._client.transaction()
        change.check(self._entry(version), -1)  # it may have been compacted away, and the next one with it
        change.create(self._entry(version + 1), data)
        refusal = self._session.commit(change)
        if refusal is None or isinstance(refusal, NoNodeError):
            return refusal is None
        if not isinstance(refusal, NodeExistsError):
            raise refusal
        found = self._session.find(self._client.get_async(self._entry(version + 1)))
        return found is not None and Header.from_bytes(found[0]).writer == writer

    def compact(self, version: int, records: Sequence[MetadataRecord]) -> None:
        """See `port.Coordination`."""

        def newest() -> tuple[bytes, ZnodeStat]:
            found: tuple[bytes, ZnodeStat] = self._session.get(self._client.get_async(self._node("snapshot")))
            return found

        data, stat = self._session.patiently(newest, "read")
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
                self._session.get(self._client.set_async(self._node("snapshot"), new, stat.version))
            except BadVersionError:
                found, _ = newest()
                return Header.from_bytes(found).writer == writer
            return True

        if not self._session.patiently(replace, "write"):
            self._delete_parts(writer, len(parts))
            return
        self._delete_parts(old.writer, old.parts)
        self._session.patiently(lambda: self._remove(range(old.removed_from, kept_from)), "compact")

    def _remove(self, versions: range) -> None:
        for start in range(versions.start, versions.stop, MAX_BATCH):
            names = [self._entry(number) for number in range(start, min(start + MAX_BATCH, versions.stop))]
            found = [
                self._session.find(result) for result in [self._client.get_async(name) for name in names]
            ]
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
                    self._session.get(self._client.create_async(path, part))

            self._session.patiently(write, "write")

    def _delete_parts(self, writer: str, count: int) -> None:
        self._delete([self._node("parts", f"{writer}-{number}") for number in range(count)])

    def _delete(self, paths: Sequence[str]) -> None:
        def delete() -> None:
            for result in [self._client.delete_async(path) for path in paths]:
                with contextlib.suppress(NoNodeError):
                    self._session.get(result)

        self._session.patiently(delete, "compact")

    # ----------------------------------------------------------------------------------------- sessions

    def claim(self, node_id: int) -> None:
        """See `port.Coordination`."""
        known = self._node("known", node_id)
        self._session.patiently(lambda: self._session.get(self._client.ensure_path_async(known)), "write")
        deadline = time.monotonic() + 2 * self._session_timeout_s
        while not self._session.patiently(lambda: self._claim(node_id), "write"):
            if time.monotonic() > deadline:
                raise self._in_use(node_id)
            time.sleep(0.02)  # the session of a process of another machine may still come to its end
        self._node_id, self._session.owner = node_id, f"broker {node_id}"

    def _claim(self, node_id: int) -> bool:
        """Whether the session is ours. That of a process that is certainly gone is replaced."""
        client, session, known = self._client, self._node("brokers", node_id), self._node("known", node_id)
        _, claims = self._session.get(client.get_async(known))
        found = self._session.find(client.get_async(session))
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
        refusal = self._session.commit(change)
        if refusal is not None and not isinstance(refusal, (BadVersionError, NodeExistsError, NoNodeError)):
            raise refusal
        return refusal is None

    def _in_use(self, node_id: int) -> NodeIdInUse:
        return NodeIdInUse(
            f"broker {node_id} of {self._url} is in use by another broker: stop it, or choose another number "
            "with --node-id"
        )

    def taken(self) -> set[int]:
        """See `port.Coordination`."""
        names = self._session.patiently(
            lambda: self._session.get(self._client.get_children_async(self._node("known"))), "read"
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
            found = [(node_id, self._session.find(result)) for node_id, result in results]
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
        loop = self._loop  # `close` may come in between
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended
                loop.call_soon_threadsafe(self._moved)

    def _on_announced(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self._nudge()  # and the read that follows watches again

    def _on_sessions(self, event: WatchedEvent) -> None:
        if event.type == EventType.NONE or self._session.ended:
            return
        path = self._node("brokers")
        # If this fails the connection is broken: the next read asks again.
        with contextlib.suppress(KazooException, JournalFailed):
            result = self._client.get_children_async(path, self._on_sessions, include_data=True)
            self._note_sessions(*self._session.get(result))

    def announce(self) -> None:
        """See `port.Coordination`."""
        self._client.set_async(self._node("announced"), str(self._node_id).encode())

    # -------------------------------------------------------------------------------------------- the end

    def interrupt(self) -> None:
        """See `port.Coordination`."""
        self._session.interrupt()

    def close(self) -> None:
        """See `port.Coordination`."""
        if self._poll is not None:
            self._poll.cancel()
        self._loop = None
        self._session.close()
