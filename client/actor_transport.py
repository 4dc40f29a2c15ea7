"""Call a broker's actor through Ray where its socket cannot be reached."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import ray

from raymq.actors import actor_calls
from raymq.actors.errors import BrokerUnavailable, RayMQError
from raymq.actors.naming import is_replica_of
from raymq.actors.wire import error_codec, protocol_version
from raymq.actors.wire.frame import Command

#: The time-out for asking an actor for its address, in seconds.
_ADDRESS_SECONDS: Final = 1.0
#: The name of the actor that listens at an address, by namespace and address. Cleared when it holds `_MAX_ACTORS`.
_actors: dict[tuple[str, str], str] = {}
_MAX_ACTORS: Final = 1_000


async def invoke(namespace: str, broker: str, address: str, session: str, command: Command, timeout: float) -> Command:
    """Have the actor of `broker` that listens at `address` carry out `command`.

    Return its answer if that is SUCCESS; raise the same errors as a request over a socket.

    Args:
        session: identifies the caller's connection; the broker keeps the state of a connection under it.
    """
    name = _actors.get((namespace, address)) or await _actor_at(namespace, broker, address)
    handle = await asyncio.to_thread(actor_calls.find, name, namespace)
    answer: Command = await actor_calls.call_async(
        name, handle, "invoke", session, command.with_joined_body(), timeout=timeout
    )
    protocol_version.check_supported(address, command, answer)
    error_codec.raise_for_error(answer, address)
    return answer


async def _actor_at(namespace: str, broker: str, address: str) -> str:
    """Return the name of the actor that listens at `address`.

    If the broker group has one replica only, its address is not queried. Raise BrokerUnavailable if no replica listens
    there.
    """
    every = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
    here = [each["name"] for each in every if each["namespace"] == namespace]
    names = sorted(name for name in here if is_replica_of(name, broker))
    found = broker
    if len(names) > 1:
        for name in names:
            handle = await asyncio.to_thread(actor_calls.find, name, namespace)
            with contextlib.suppress(RayMQError):  # an actor that does not answer is skipped
                if await actor_calls.call_async(name, handle, "address", 0.0, 0.0, timeout=_ADDRESS_SECONDS) == address:
                    found = name
                    break
        else:
            raise BrokerUnavailable(address, f"no replica of {broker} listens at this address now")
    if len(_actors) >= _MAX_ACTORS:
        _actors.clear()
    _actors[namespace, address] = found
    return found
