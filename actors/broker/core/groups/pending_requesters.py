"""Track clients that requested a reply before their first heartbeat. No I/O.

A request message names the client that gets the reply (REPLY_TO_CLIENT). Replies are pushed over the connection of that
client's heartbeats. rocketmq-client-go sends its first heartbeat to a broker up to 30 s after its first request. Until
then the connection of the request is used.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

#: The limit of remembered requesters; the oldest are forgotten first.
MAX_REQUESTERS: Final = 10_000
#: A longer client id is not remembered.
MAX_ID_CHARACTERS: Final = 1_024


@dataclass(slots=True)
class PendingRequesters:
    """The pending requesters of one broker, used on its event loop."""

    _connections: dict[str, Hashable] = field(default_factory=dict)
    _ids: dict[Hashable, set[str]] = field(default_factory=dict)

    def add_requester(self, client_id: str, connection: Hashable) -> bool:
        """Record that a request message of `client_id` came over this connection.

        The first connection counts while it is open, because a forwarded request also names the client that it came
        from.

        Returns:
            Whether the connection is new here: the caller then has to ensure that `connection_closed` is called.
        """
        if client_id in self._connections or len(client_id) > MAX_ID_CHARACTERS:
            return False
        if len(self._connections) >= MAX_REQUESTERS:
            self._forget(next(iter(self._connections)))
        new = connection not in self._ids
        self._connections[client_id] = connection
        self._ids.setdefault(connection, set()).add(client_id)
        return new

    def connection_of(self, client_id: str) -> Hashable | None:
        """Return the connection of the client's request, or None.

        The result is None if there was no request or its connection is closed.
        """
        return self._connections.get(client_id)

    def connection_closed(self, connection: Hashable) -> None:
        """Remove a closed connection."""
        for client_id in self._ids.pop(connection, ()):
            del self._connections[client_id]

    def _forget(self, client_id: str) -> None:
        self._ids[self._connections.pop(client_id)].discard(client_id)
