"""A proxy in front of PostgreSQL that makes one COMMIT, or its answer, vanish with the connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

Theft = Literal["question", "answer"]
CHUNK_BYTES = 1 << 16


class AnswerThief:
    """Passes everything on until `steal` is set: then a COMMIT does not arrive, or its answer does not."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        self._server = (parts.hostname or "", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.dsn = parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl() + "?sslmode=disable"
        self.steal: Theft | None = None
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(self._server)
        answers = threading.Thread(target=_pass_on, args=(server, client))
        answers.start()
        with client, server, contextlib.suppress(OSError):
            while question := client.recv(CHUNK_BYTES):
                theft = self.steal if b"COMMIT" in question else None
                if theft == "question":
                    break
                if theft == "answer":
                    client.shutdown(socket.SHUT_RDWR)
                server.sendall(question)
                if theft == "answer":
                    break
            server.shutdown(socket.SHUT_WR)
            answers.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the target has left; the source is read to its end all the same
        while answer := source.recv(CHUNK_BYTES):
            with contextlib.suppress(OSError):
                target.sendall(answer)
        target.shutdown(socket.SHUT_RDWR)
