"""The broker process: from a data folder and settings to a serving port, and back to a clean stop."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import random
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import uvloop

from gapless.broker import metrics
from gapless.broker.coordination.port import Coordination, JournalFailed, NodeIdInUse
from gapless.broker.coordination.sqlite import SqliteCoordination
from gapless.broker.shell import Shell
from gapless.core.configs import Settings
from gapless.core.contract import InvariantViolated
from gapless.core.log import LogFailed
from gapless.core.node import Node
from gapless.errors import GaplessError, UsageError
from gapless.storage.disk import boot_id
from gapless.storage.file_store import DataDirUnusable, FileLogStore
from gapless.storage.formats import META_FILE, MetaProperties

log = logging.getLogger("gapless.broker")

BACKLOG = 1024
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 -- recognised, not bound
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's codes
KEPT_BYTES = 32 * 1024 * 1024
SWITCH_INTERVAL_S = 0.001
"""How long a thread that comes back from the disk may have to wait for a busy loop."""
LOOK_FOR_BROKERS_EVERY_S = 0.005
REPORT_MISSING_BROKERS_EVERY_S = 10.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotServe(GaplessError):
    """The broker cannot start; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a broker is started."""

    data_dir: Path
    coordination: str | None = None
    """zookeeper://HOST:PORT/PATH, or None for brokers that share `data_dir`."""
    node_id: int | None = 1
    """None picks the first number that no broker has, nor ever had."""
    host: str = "127.0.0.1"
    port: int = 9092
    advertise: str | None = None
    """HOST or HOST:PORT."""
    ready_file: Path | None = None
    metrics_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    cluster_size: int | None = 1
    """How many brokers there are to be; None counts those that there are or were."""
    awaits_others: bool = False
    """Ready when all of them are."""
    lifeline: int | None = None
    """A pipe that closes when this broker has to end, because whoever watches over it has."""


Announce = Callable[[str, int], None]
"""Is told the bootstrap address, and the port that is listened on, once clients can connect."""


def run(options: Options, announce: Announce) -> None:
    """Serve until SIGTERM or SIGINT.

    SIGTERM hands leadership over to other brokers first; SIGINT, or a second SIGTERM, does not wait for that.
    """
    _keep_freed_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        uvloop.run(_serve(options, announce))
    except (LogFailed, JournalFailed) as error:
        raise CannotServe(str(error)) from error


async def _serve(options: Options, announce: Announce) -> None:
    if options.advertise is None and options.host in ANY_ADDRESS:
        raise UsageError(
            f"--host {options.host} listens everywhere; give --advertise the name that clients connect to"
        )
    if (options.data_dir / META_FILE).exists():
        raise DataDirUnusable(
            f"the data folder {options.data_dir} has the layout of an earlier version, with logs beside the "
            "metadata journal: give --data a new folder"
        )
    with ExitStack() as held:
        listener = held.enter_context(_bind(options.host, options.port))
        address = _advertised(options, listener.getsockname()[1])
        coordination = _meet(options)
        held.callback(coordination.close)
        node_id = _claim_session(coordination, options)
        forget_ready(options.ready_file)  # a crash may have left one
        store = FileLogStore(options.data_dir / f"broker-{node_id}")
        held.callback(store.close)
        cluster_id = coordination.cluster_id
        _claim_folder(store, cluster_id, node_id, options)
        brokers = options.cluster_size or len(coordination.taken())
        settings = Settings({**cluster_defaults(brokers), **options.settings, "node.id": str(node_id)})
        node = Node(node_id, cluster_id, settings, store, random.SystemRandom())
        shell = Shell(node, store, coordination, _raise_file_limit())
        try:
            await _serve_node(options, shell, listener, address, announce)
        finally:
            # A broker that ends before it serves may have a change of the journal under way. Python's SQLite
            # module crashes the process if a connection is closed while another thread uses it.
            await shell.journal.settle()
            shell.journal.close()


async def _serve_node(
    options: Options,
    shell: Shell,
    listener: socket.socket,
    address: tuple[str, int],
    announce: Announce,
) -> None:
    loop = asyncio.get_running_loop()
    asked, at_once = _listen_for_signals(loop, options.lifeline)
    loop.set_exception_handler(_stop_on_bug(shell))
    host, port = address
    this_boot = os.environ.get("GAPLESS_BOOT_ID") or boot_id()
    kept = shell.store.kept_since(this_boot)
    start = shell.start(host, port, kept=kept, listen=lambda: listener.listen(BACKLOG))
    await _first_of(asked.wait(), start)
    if not shell.node.serving:
        return  # told to stop before it began
    shell.store.note_boot(this_boot)  # the journal knows by now what an earlier boot has cost
    own_port = listener.getsockname()[1]
    with _cannot_listen(options.host, own_port, "--host or --port"):
        servers = [await loop.create_server(shell.new_connection, sock=listener, backlog=BACKLOG)]
    if options.metrics_port is not None:
        with _cannot_listen(options.host, options.metrics_port, "--metrics-port"):
            endpoint = await metrics.serve(shell, options.host, options.metrics_port)
        servers.append(endpoint)
        metrics_port = endpoint.sockets[0].getsockname()[1]
        log.info("metrics at http://%s/metrics", _address(options.host, metrics_port))
    try:
        if options.awaits_others:
            others = _all_there(shell, options.cluster_size or 1)
            await _first_of(asked.wait(), shell.failed.wait(), others)
        if not asked.is_set() and not shell.failed.is_set():
            tell_ready(options.ready_file, _address(host, port), lambda address: announce(address, own_port))
        await _first_of(asked.wait(), shell.failed.wait())
        log.info("stopping")
        forget_ready(options.ready_file)
        if not shell.failed.is_set() and not at_once.is_set():
            await _first_of(at_once.wait(), shell.hand_over())
    finally:
        forget_ready(options.ready_file)
        for server in servers:
            server.close()
        await shell.stop()
    if shell.failure is not None:
        raise shell.failure


def cluster_defaults(brokers: int) -> dict[str, str]:
    """Settings for what is not set, so that a cluster of several brokers survives the loss of one."""
    if brokers == 1:
        return {}
    replicas = str(min(3, brokers))
    settings = {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
    }
    return settings if brokers < 3 else {**settings, "min.insync.replicas": "2"}


def _listen_for_signals(
    loop: asyncio.AbstractEventLoop, lifeline: int | None
) -> tuple[asyncio.Event, asyncio.Event]:
    """Two events: that the broker shall stop, and that it shall not take its time for it."""
    asked, at_once = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        if asked.is_set():
            at_once.set()
        asked.set()

    def stop_at_once() -> None:
        at_once.set()
        asked.set()

    def alone() -> None:
        if lifeline is not None:
            loop.remove_reader(lifeline)
        stop_at_once()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, stop_at_once)
    if lifeline is not None:
        loop.add_reader(lifeline, alone)
    return asked, at_once


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them has ended; the others are given up."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    for task in done:
        task.result()


async def _all_there(shell: Shell, cluster_size: int) -> None:
    """Wait until all brokers have registered, however long it takes; log which ones, if it takes long."""
    report_at = monotonic() + REPORT_MISSING_BROKERS_EVERY_S
    while len(present := shell.node.image.live_brokers()) < cluster_size:
        await asyncio.sleep(LOOK_FOR_BROKERS_EVERY_S)
        if monotonic() > report_at:
            report_at = monotonic() + REPORT_MISSING_BROKERS_EVERY_S
            numbers = ", ".join(str(broker.node_id) for broker in present)
            log.warning("waiting for %d brokers to register; registered are: %s", cluster_size, numbers)


def _meet(options: Options) -> Coordination:
    """Access to what this broker shares with others."""
    if options.coordination is None:
        return SqliteCoordination(options.data_dir)
    from gapless.broker.coordination.zookeeper import SESSION_TIMEOUT_S, ZooKeeperCoordination

    # Hung is for the brokers to find out, so ZooKeeper must not be quicker with that than they are.
    hung_after_s = Settings(options.settings).get("broker.session.timeout.ms") / 1000
    return ZooKeeperCoordination(options.coordination, max(SESSION_TIMEOUT_S, 2 * hung_after_s))


def _claim_session(coordination: Coordination, options: Options) -> int:
    """Become a broker that no other process is."""
    if options.node_id is not None:
        coordination.claim(options.node_id)
        return options.node_id
    taken = coordination.taken()
    for node_id in count(1):
        if node_id not in taken:
            try:
                coordination.claim(node_id)
            except NodeIdInUse:
                continue  # it has just begun
            return node_id
    raise InvariantViolated("there are no numbers left")


def _claim_folder(store: FileLogStore, cluster_id: str, node_id: int, options: Options) -> None:
    """See that the logs are this broker's; a new folder becomes so."""
    meta = store.read_meta()
    if meta is None:
        store.write_meta(MetaProperties(cluster_id, node_id, uuid4()))
    elif meta.node_id != node_id:
        raise DataDirUnusable(
            f"the data folder {store.location} belongs to node.id {meta.node_id}, not {node_id}: "
            "give --data another folder, or correct node.id"
        )
    elif meta.cluster_id != cluster_id:
        place = "beside it" if options.coordination is None else f"at {options.coordination}"
        remedy = "restore metadata.sqlite" if options.coordination is None else "correct --coordination"
        raise DataDirUnusable(
            f"the data folder {store.location} belongs to cluster {meta.cluster_id}, but the metadata "
            f"journal {place} to {cluster_id}: {remedy}, or take a new data folder"
        )


def _advertised(options: Options, port: int) -> tuple[str, int]:
    """Where clients and other brokers are told to connect to."""
    if options.advertise is None:
        return options.host, port
    host, separator, own_port = options.advertise.rpartition(":")
    if not separator or "]" in own_port or (":" in host and not host.startswith("[")):
        return options.advertise.strip("[]"), port
    if not own_port.isdigit() or not 0 < int(own_port) < 65536:
        raise UsageError(f"--advertise {options.advertise}: {own_port!r} is not a port number")
    return host.strip("[]"), int(own_port)


ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, object]], None]


def _stop_on_bug(shell: Shell) -> ExceptionHandler:
    """An exception that nobody handled is a bug of ours: stop rather than serve on in an unknown state."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError):
            log.warning("%s: %s", context.get("message"), error)
            return
        log.error("%s", context.get("message"), exc_info=error if isinstance(error, BaseException) else None)
        shell.fail(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))

    return handle


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _cannot_listen(host: str, port: int, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where, reason = _address(host, port), error.strerror or error
        raise CannotServe(f"cannot listen on {where}: {reason}; choose another with {option}") from error


def _bind(host: str, port: int) -> socket.socket:
    with _cannot_listen(host, port, "--host or --port"):
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    listener.setblocking(False)
    return listener


def tell_ready(ready_file: Path | None, address: str, announce: Callable[[str], None]) -> None:
    """Let everybody know, in the file and by `announce`, that clients can connect."""
    if ready_file is not None:
        # Written beside and moved, so that nobody reads half an address.
        partial = ready_file.with_name(ready_file.name + ".partial")
        with _cannot_write(ready_file):
            partial.write_text(address + "\n")
            partial.replace(ready_file)
    announce(address)


def forget_ready(ready_file: Path | None) -> None:
    """Nobody shall connect any more."""
    if ready_file is not None:
        with _cannot_write(ready_file):
            ready_file.unlink(missing_ok=True)


@contextmanager
def _cannot_write(ready_file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotServe(f"cannot write the ready file {ready_file}: {error.strerror}") from error


def _keep_freed_memory() -> None:
    """Let glibc keep the buffers of large requests for the next ones.

    By default it maps every buffer of a megabyte anew and gives it back: the page faults cost four times as
    much as all other handling of the request.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def _raise_file_limit() -> int:
    """Every segment and every connection needs a file descriptor; how many there can be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2**31 if hard == resource.RLIM_INFINITY else hard
