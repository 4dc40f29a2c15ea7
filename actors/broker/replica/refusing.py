"""What a broker that is not master answers to the commands of clients: that nothing was done, and to go elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from raymq.actors.errors import StoreFollows
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection


def refusing(name: str, why: Callable[[], str]) -> dict[int, Handler]:
    """Handlers of all requests; `why` says what else there is to be said now.

    A pull, too, is refused by an error: RocketMQ's replicas answer "at once again", and with bounds that are theirs; a
    client would ask again and again without a pause, and might believe that its queue has become shorter.
    """

    def refuse(_: ServerConnection, request: Command) -> Command:
        request.body = b""
        raise StoreFollows(f"{name}: this broker is not the master now: {why()}")

    return dict.fromkeys(RequestCode, refuse)
