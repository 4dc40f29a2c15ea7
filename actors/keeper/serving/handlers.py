"""Request handlers for the keeper of this process.

A broker's server and a keeper's own server use the same handlers.
"""

from __future__ import annotations

from collections.abc import Awaitable

from raymq.actors.keeper.serving.local_keeper import LocalKeeper
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.keeper_commands import keeper_answer, keeper_status_answer, read_seen
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection


def handlers(keeper: LocalKeeper) -> dict[int, Handler]:
    """Return the handlers of requests to the keeper and of its status."""

    def ask(_: ServerConnection, request: Command) -> Awaitable[Command]:
        deciding = keeper.ask(bytes(request.body), read_seen(request))

        async def answer() -> Command:
            body, saves = await deciding
            return keeper_answer(request, body, saves)

        return answer()

    def status(_: ServerConnection, request: Command) -> Command:
        return keeper_status_answer(request, keeper.status)

    return {RequestCode.ASK_KEEPER: ask, RequestCode.KEEPER_STATUS: status}
