"""What tasks of other processes work with: it needs addresses only, and has a connection of its own."""

from __future__ import annotations

from collections.abc import Sequence

from raymq.actors.protocol import Tls
from raymq.client.closing import Closing
from raymq.client.connection import Connection


class OwnConnection(Closing):
    """A context manager that closes its connection."""

    def __init__(self, name_servers: Sequence[str], tls: Tls | None = None) -> None:
        self._mq = Connection(name_servers, tls=tls)

    def close(self) -> None:
        """Close the sockets."""
        self._mq.close()
