"""What tasks of other processes work with: it needs addresses only, and has a connection of its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from raymq.actors.protocol import Tls
from raymq.client.connection import Connection


class OwnConnection:
    """A context manager that closes its connection."""

    def __init__(self, name_servers: Sequence[str], tls: Tls | None = None) -> None:
        self._mq = Connection(name_servers, tls=tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets."""
        self._mq.close()
