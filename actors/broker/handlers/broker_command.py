"""Declare what a command does, where its handler is registered.

A master of a group with replicas guards each command by its kind (`raymq.actors.broker.replica.leader_guard`).
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable
from dataclasses import dataclass, replace

from raymq.actors.wire.commands.target_broker import check_target_broker
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Answer, Handler, ServerConnection


class CommandKind(enum.Enum):
    """What a command does to the broker, or reads from it."""

    #: It reads messages, which are confirmed, or what only this broker knows, or leases messages.
    READS = "reads"
    #: It reads state by which other brokers and clients append and decide: the next master must have it, too.
    READS_CONFIRMED = "reads confirmed"
    #: It appends messages, and its answer says by itself how safe they are.
    APPENDS = "appends"
    #: It changes state that replicas have, too.
    CHANGES = "changes"
    #: It changes this broker's own files or settings of its machine, which replicas do not have.
    ADMINISTRATES = "administrates"


@dataclass(frozen=True, slots=True)
class BrokerCommand:
    """The handler of a request code, and what it does."""

    kind: CommandKind
    handler: Handler


#: The commands of a family, or of a broker, by request code.
Commands = dict[int, BrokerCommand]


def reads(handler: Handler) -> BrokerCommand:
    """Declare a command that reads; see `CommandKind.READS`."""
    return BrokerCommand(CommandKind.READS, handler)


def reads_confirmed(handler: Handler) -> BrokerCommand:
    """Declare a command that reads replicated state; see `CommandKind.READS_CONFIRMED`."""
    return BrokerCommand(CommandKind.READS_CONFIRMED, handler)


def appends(handler: Handler) -> BrokerCommand:
    """Declare a command that appends messages; see `CommandKind.APPENDS`."""
    return BrokerCommand(CommandKind.APPENDS, handler)


def changes(handler: Handler) -> BrokerCommand:
    """Declare a command that changes replicated state; see `CommandKind.CHANGES`."""
    return BrokerCommand(CommandKind.CHANGES, handler)


def administrates(handler: Handler) -> BrokerCommand:
    """Declare a command that changes this broker alone; see `CommandKind.ADMINISTRATES`."""
    return BrokerCommand(CommandKind.ADMINISTRATES, handler)


def guard_target_broker(broker: str, commands: Commands) -> Commands:
    """Return the same commands, guarded by the name of this broker."""
    return {code: replace(each, handler=_checked(broker, each.handler)) for code, each in commands.items()}


def _checked(broker: str, handler: Handler) -> Handler:
    def serve(connection: ServerConnection, request: Command) -> Answer | Awaitable[Answer]:
        check_target_broker(broker, request)
        return handler(connection, request)

    return serve
