"""Requests for one broker by its name (ours): they say the name, since its address may be another broker's by now.

A name server tells an address for some seconds after its broker has left it. Another broker that is asked there knows
nothing of what the one that was meant has decided, and its "nothing is known" would be believed.
"""

from __future__ import annotations

from typing import Final

from raymq.actors.errors import BrokerUnavailable
from raymq.actors.wire.frame import Command

_MEANT: Final = "meant"


def meant_for(broker: str, command: Command) -> Command:
    """The same command of our own form, which only the broker of that name may carry out."""
    command.fields[_MEANT] = broker
    return command


def check_meant_for(broker: str, request: Command) -> None:
    """BrokerUnavailable if a request is meant for another broker than the one of that name; nothing was done."""
    meant = request.fields.get(_MEANT)
    if meant is not None and meant != broker:
        raise BrokerUnavailable(str(meant), f"{broker} has its address now")
