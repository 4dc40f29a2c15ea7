"""Requests that name the broker for which they are meant (ours).

A name server returns an address for some seconds after its broker has left it, and another broker may have the address
by then. That broker has no record of the decisions of the intended broker, and the client would rely on its answer
"nothing is known".
"""

from __future__ import annotations

from typing import Final

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.wire.frame import Command

_MEANT: Final = "meant"


def with_target_broker(broker: str, command: Command) -> Command:
    """Return a command of ours after marking it for the broker of that name.

    Only that broker may carry it out.
    """
    command.fields[_MEANT] = broker
    return command


def check_target_broker(broker: str, request: Command) -> None:
    """Raise BrokerUnavailable if a request is marked for another broker than `broker`.

    Nothing was done in that case.
    """
    target = request.fields.get(_MEANT)
    if target is not None and target != broker:
        raise BrokerUnavailable(str(target), f"its address now belongs to {broker}")
