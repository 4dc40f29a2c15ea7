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
    answer = await asyncio.to_thread(_call, namespace, broker, session, command.in_one_piece(), timeout)
    if answer.code != ResponseCode.SUCCESS:
        raise faults.to_error(answer)
    return answer


def _call(namespace: str, broker: str, session: str, command: Command, timeout: float) -> Command:
    handle = handles.find(broker, namespace)
    answer: Command = handles.call(broker, handle, "invoke", session, command, timeout=timeout)
    return answer
