"""The broker process: from a data folder and settings to a serving port, and back to a clean stop."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import random
import resource
import signal
import socket
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import uvloop

from gapless.broker import metrics
from gapless.broker.journal import Journal, JournalFailed
from gapless.broker.shell import Shell
from gapless.core.configs import Settings
from gapless.core.log import LogFailed
from gapless.core.node import Node
from gapless.errors import GaplessError, UsageError
from gapless.storage.file_store import DataDirUnusable, FileLogStore
from gapless.storage.formats import MetaProperties

log = logging.getLogger("gapless.broker")

BACKLOG = 1024
ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 -- recognised, not bound
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's codes
KEPT_BYTES = 32 * 1024 * 1024


class CannotServe(GaplessError):
    """The broker cannot start; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a broker is started."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 9092
    advertise: str | None = None
    ready_file: Path | None = None
    metrics_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def run(options: Options, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `announce` is told the bootstrap address once clients can connect."""
    _keep_freed_memory()
    try:
        uvloop.run(_serve(options, announce))
    except (LogFailed, JournalFailed) as error:
        raise CannotServe(str(error)) from error


async def _serve(options: Options, announce: Callable[[str], None]) -> None:
    settings = Settings(options.settings)
    if options.advertise is None and options.host in ANY_ADDRESS:
        raise UsageError(
            f"--host {options.host} listens everywhere; give --advertise the name that clients connect to"
        )
    listener = _bind(options.host, options.port)
    try:
        store = FileLogStore(options.data_dir)
        try:
            cluster_id = _claim(store, settings.get("node.id"))
            await _serve_store(options, settings, cluster_id, listener, store, announce)
        finally:
            store.close()
    finally:
        listener.close()


async def _serve_store(
    options: Options,
    settings: Settings,
    cluster_id: str,
    listener: socket.socket,
    store: FileLogStore,
    announce: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    _forget_ready(options)  # a crash may have left one
    node = Node(settings.get("node.id"), cluster_id, settings, store, random.SystemRandom())
    shell = Shell(node, store, Journal(options.data_dir / "metadata.sqlite"), _raise_file_limit())
    loop.set_exception_handler(_stop_on_bug(stopped, shell))
    port = listener.getsockname()[1]
    address = options.advertise or options.host
    await shell.start(address, port)
    with _cannot_listen(options.host, port, "--host or --port"):
        servers = [await loop.create_server(shell.new_connection, sock=listener, backlog=BACKLOG)]
    if options.metrics_port is not None:
        with _cannot_listen(options.host, options.metrics_port, "--metrics-port"):
            endpoint = await metrics.serve(shell, options.host, options.metrics_port)
        servers.append(endpoint)
        metrics_port = endpoint.sockets[0].getsockname()[1]
        log.info("metrics at http://%s/metrics", _address(options.host, metrics_port))
    try:
        _tell_ready(options, _address(address, port), announce)
        await stopped.wait()
        log.info("stopping")
    finally:
        _forget_ready(options)
        for server in servers:
            server.close()
        await shell.stop()
    if shell.failure is not None:
        raise shell.failure


def _claim(store: FileLogStore, node_id: int) -> str:
    """The id of the cluster that the data folder belongs to; a new folder begins a new cluster."""
    meta = store.read_meta()
    if meta is None:
        # Kafka's form of an id, never beginning with "-": its tools would take that for an option.
        cluster_id = urlsafe_b64encode(b"\0" + uuid4().bytes[1:]).decode().rstrip("=")
        meta = MetaProperties(cluster_id, node_id, uuid4())
        store.write_meta(meta)
    elif meta.node_id != node_id:
        raise DataDirUnusable(
            f"the data folder {store.location} belongs to node.id {meta.node_id}, not {node_id}: "
            "give --data another folder, or correct node.id"
        )
    return meta.cluster_id


ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, object]], None]


def _stop_on_bug(stopped: asyncio.Event, shell: Shell) -> ExceptionHandler:
    """An exception that nobody handled is a bug of ours: stop rather than serve on in an unknown state."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError):
            log.warning("%s: %s", context.get("message"), error)
            return
        shell.fail(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))
        log.error("%s", context.get("message"), exc_info=error if isinstance(error, BaseException) else None)
        stopped.set()

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


def _tell_ready(options: Options, address: str, announce: Callable[[str], None]) -> None:
    if options.ready_file is not None:
        # Written beside and moved, so that nobody reads half an address.
        partial = options.ready_file.with_name(options.ready_file.name + ".partial")
        with _cannot_write(options.ready_file):
            partial.write_text(address + "\n")
            partial.replace(options.ready_file)
    announce(address)


def _forget_ready(options: Options) -> None:
    if options.ready_file is not None:
        with _cannot_write(options.ready_file):
            options.ready_file.unlink(missing_ok=True)


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
