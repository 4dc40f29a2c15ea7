"""What a server answers for the keeper of its process. A broker's server and a keeper's own one use the same."""

from __future__ import annotations

from collections.abc import Awaitable

from raymq.actors.keeper.serving.served_keeper import ServedKeeper
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.keeper import keeper_answer, keeper_status_answer, read_seen
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection


def handlers(keeper: ServedKeeper) -> dict[int, Handler]:
    """Questions to the keeper, and how it does."""

    def ask(_: ServerConnection, request: Command) -> Awaitable[Command]:
        deciding = keeper.ask(bytes(request.body), read_seen(request))

        async def answer() -> Command:
            body, saves = await deciding
            return keeper_answer(request, body, saves)

        return answer()

    def status(_: ServerConnection, request: Command) -> Command:
        return keeper_status_answer(request, keeper.status)

    return {RequestCode.ASK_KEEPER: ask, RequestCode.KEEPER_STATUS: status}
