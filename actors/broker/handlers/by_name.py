"""What one broker alone can answer: a request that is meant for another one by its name is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from raymq.actors.wire.commands.meant import check_meant_for
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Answer, Handler, ServerConnection


def by_name(broker: str, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """The same handlers of the broker of that name."""
    return {code: _checked(broker, handler) for code, handler in handlers.items()}


def _checked(broker: str, handler: Handler) -> Handler:
    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        check_meant_for(broker, request)
        return handler(connection, request)

    return serve
