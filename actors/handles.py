"""Remote calls as values: the only place that waits for Ray and knows Ray's exceptions.

What a caller sees is ours: the error that the method raised, `BrokerUnavailable` where there is no actor (nothing was
done), `Timeout` and `ConnectionLost` where the outcome is unknown. Of an actor that is dead Ray does not tell whether
it died before the call or under it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    RayActorError,
    RayTaskError,
    TaskCancelledError,
)

from raymq.actors.errors import BrokerUnavailable, ConnectionLost, RayMQError, Timeout
from raymq.actors.naming import is_broker_name
from raymq.storage.errors import no_answer_within


def find(name: str, namespace: str) -> ActorHandle[Any]:
    """The handle of a named actor; BrokerUnavailable if there is none of that name."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError as error:
        raise BrokerUnavailable(name, f"no such actor in namespace {namespace}") from error


def broker_names(namespace: str) -> list[str]:
    """The names of all brokers' actors in the namespace, sorted, those included that are being restarted."""
    every = ray.util.list_named_actors(all_namespaces=True)
    names = (each["name"] for each in every if each["namespace"] == namespace)
    return sorted(name for name in names if is_broker_name(name))


def call(name: str, handle: ActorHandle[Any], method: str, *args: Any, timeout: float) -> Any:
    """Call `method` of the actor called `name` and return its result.

    Raises:
        RayMQError: what the method raised.
        Timeout: no answer within `timeout` seconds, or the actor broke off; it may have been carried out.
        ConnectionLost: the actor is dead; it may have died under the call, when that was carried out.
        BrokerUnavailable: the actor could not be started; it was not carried out.
    """
    return result(name, getattr(handle, method).remote(*args), timeout)


async def acall(name: str, handle: ActorHandle[Any], method: str, *args: Any, timeout: float) -> Any:
    """`call` for asyncio code: however many wait, none of them keeps a thread, and none waits for another."""
    with _as_ours(name, timeout):
        async with asyncio.timeout(timeout):
            # Large arguments are copied, which is no work for an event loop.
            ref = await asyncio.to_thread(getattr(handle, method).remote, *args)
            return await asyncio.wrap_future(ref.future())


def result(name: str, ref: ray.ObjectRef[Any], timeout: float) -> Any:
    """The value of a call that was started; errors as `call` says."""
    with _as_ours(name, timeout):
        return ray.get(ref, timeout=timeout)


@contextlib.contextmanager
def _as_ours(name: str, timeout: float) -> Iterator[None]:
    """What waits for Ray within the block raises our errors."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, RayMQError):
            raise error.cause from None
        raise RayMQError(f"{name}: {error.cause}") from error
    except (GetTimeoutError, TimeoutError, ActorUnavailableError, TaskCancelledError) as error:
        raise Timeout(name, f"{no_answer_within(timeout)}; the call may have been carried out") from error
    except ActorUnschedulableError as error:
        raise BrokerUnavailable(name, f"the actor is not started: {str(error).splitlines()[0]}") from error
    except (ActorDiedError, RayActorError) as error:
        raise ConnectionLost(name, f"the actor is dead: {str(error).splitlines()[0]}") from error
