"""Who asked for a reply before telling who it is. No I/O.

A request message names the client that the reply is for (REPLY_TO_CLIENT). Replies are pushed over the connection of
that client's heartbeats; rocketmq-client-go sends its first heartbeat to a broker up to 30 s after its first request.
Until then the connection that the request came over has to do.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

#: The oldest are forgotten beyond so many.
MOST_ASKERS: Final = 10_000
#: A client id beyond this length is not remembered.
MAX_ID_CHARACTERS: Final = 1_024


@dataclass(slots=True)
class Askers:
    """Of one broker, used on its loop."""

    _connections: dict[str, Hashable] = field(default_factory=dict)
    _ids: dict[Hashable, set[str]] = field(default_factory=dict)

    def asked(self, client_id: str, connection: Hashable) -> bool:
        """A request message for whose reply `client_id` waits came over this connection.

        The first connection counts while it is open: a forwarded request names the client that it was from.

        Returns:
            Whether the connection is new here: the caller then has to see to `connection_closed`.
        """
        if client_id in self._connections or len(client_id) > MAX_ID_CHARACTERS:
            return False
        if len(self._connections) >= MOST_ASKERS:
            self._forget(next(iter(self._connections)))
        new = connection not in self._ids
        self._connections[client_id] = connection
        self._ids.setdefault(connection, set()).add(client_id)
        return new

    def connection_of(self, client_id: str) -> Hashable | None:
        """The connection over which this client asked; None if it did not, or has gone."""
        return self._connections.get(client_id)

    def connection_closed(self, connection: Hashable) -> None:
        """A connection is gone."""
        for client_id in self._ids.pop(connection, ()):
            del self._connections[client_id]

    def _forget(self, client_id: str) -> None:
        self._ids[self._connections.pop(client_id)].discard(client_id)
