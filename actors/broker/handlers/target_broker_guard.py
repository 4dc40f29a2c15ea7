"""Refuse requests that name another broker as their target."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from raymq.actors.wire.commands.target_broker import check_target_broker
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Answer, Handler, ServerConnection


def guard_target_broker(broker: str, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Return the same handlers, guarded by the name of this broker."""
    return {code: _checked(broker, handler) for code, handler in handlers.items()}


def _checked(broker: str, handler: Handler) -> Handler:
    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        check_target_broker(broker, request)
        return handler(connection, request)

    return serve
