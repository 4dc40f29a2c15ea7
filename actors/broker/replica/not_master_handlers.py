"""Refuse clients' commands on a broker that is not master.

The error states that nothing was done; the client then looks for the master.
"""

from __future__ import annotations

from collections.abc import Callable

from raymq.actors.errors import StoreFollows
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server_connection import Handler, ServerConnection


def not_master_handlers(name: str, why: Callable[[], str]) -> dict[int, Handler]:
    """Return handlers that refuse every request; `why` returns an additional reason.

    Pulls are refused by an error, too. RocketMQ's replicas answer them with "retry immediately" and with their own
    bounds: a client would retry without a pause, and might conclude that its queue has become shorter.
    """

    def refuse(_: ServerConnection, request: Command) -> Command:
        request.body = b""
        raise StoreFollows(f"{name}: this broker is not the master now: {why()}")

    return dict.fromkeys(RequestCode, refuse)
