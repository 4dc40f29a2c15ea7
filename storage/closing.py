"""What `with` closes: stores, connections, clients and whatever else holds files or sockets until its `close()`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager that gives itself, and calls its own `close()` at the end, also after an exception."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
