"""The way to a broker to whose socket no way leads: its actor, by Ray."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import ray

from raymq.actors import handles
from raymq.actors.errors import BrokerUnavailable, RayMQError
from raymq.actors.naming import is_replica_of
from raymq.actors.wire import faults, own_protocol
from raymq.actors.wire.frame import Command

#: What an actor may take to say where it listens.
_ADDRESS_SECONDS: Final = 1.0
#: By namespace and address: the name of the actor that listens there. Of more they are found out anew.
_actors: dict[tuple[str, str], str] = {}
_MOST_ACTORS: Final = 1_000


async def invoke(namespace: str, broker: str, address: str, session: str, command: Command, timeout: float) -> Command:
    """Have the actor of `broker` that listens at `address` carry out `command`; its answer if that is SUCCESS, errors
    as a socket's.

    Args:
        session: names the caller's connection; the broker keeps by it what belongs to a connection.
    """
    name = _actors.get((namespace, address)) or await _actor_at(namespace, broker, address)
    handle = await asyncio.to_thread(handles.find, name, namespace)
    answer: Command = await handles.acall(name, handle, "invoke", session, command.in_one_piece(), timeout=timeout)
    own_protocol.check_served(address, command, answer)
    faults.check(answer, address)
    return answer


async def _actor_at(namespace: str, broker: str, address: str) -> str:
    """Which replica of a group it is; the only one needs not be asked."""
    every = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
    here = [each["name"] for each in every if each["namespace"] == namespace]
    names = sorted(name for name in here if is_replica_of(name, broker))
    found = broker
    if len(names) > 1:
        for name in names:
            handle = await asyncio.to_thread(handles.find, name, namespace)
            with contextlib.suppress(RayMQError):  # one that is away is not the one
                if await handles.acall(name, handle, "address", 0.0, 0.0, timeout=_ADDRESS_SECONDS) == address:
                    found = name
                    break
        else:
            raise BrokerUnavailable(address, f"no replica of {broker} listens there now")
    if len(_actors) >= _MOST_ACTORS:
        _actors.clear()
    _actors[namespace, address] = found
    return found
