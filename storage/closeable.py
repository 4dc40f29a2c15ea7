"""The base class of all objects with `close()`: stores, connections, clients and more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closeable(ABC):
    """A context manager that returns itself and calls its `close()` on exit, also after exceptions."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release all resources. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
