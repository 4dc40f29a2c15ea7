"""The way to a broker to whose socket no way leads: its actor, by Ray."""

from __future__ import annotations

import asyncio

from raymq.actors import handles
from raymq.actors.wire import faults
from raymq.actors.wire.codes import ResponseCode
from raymq.actors.wire.frame import Command


async def invoke(namespace: str, broker: str, session: str, command: Command, timeout: float) -> Command:
    """Have the actor of `broker` carry out `command`; its answer if that is SUCCESS, errors as a socket's.

    Args:
        session: names the caller's connection; the broker keeps by it what belongs to a connection.
    """
    handle = await asyncio.to_thread(handles.find, broker, namespace)
    answer: Command = await handles.acall(broker, handle, "invoke", session, command.in_one_piece(), timeout=timeout)
    if answer.code != ResponseCode.SUCCESS:
        raise faults.to_error(answer)
    return answer
