"""What is started by a `with` block, and ends with it."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class EndsWithBlock:
    """Something to start and to close. If the start fails, what it left is closed, too."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
