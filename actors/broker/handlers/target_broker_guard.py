"""Refuse requests that name another broker as their target."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from raymq.actors.broker.handlers.broker_command import Commands
from raymq.actors.wire.commands.target_broker import check_target_broker
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Answer, Handler, ServerConnection


def guard_target_broker(broker: str, commands: Commands) -> Commands:
    """Return the same commands, guarded by the name of this broker."""
    return {code: replace(each, handler=_checked(broker, each.handler)) for code, each in commands.items()}


def _checked(broker: str, handler: Handler) -> Handler:
    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        check_target_broker(broker, request)
        return handler(connection, request)

    return serve
