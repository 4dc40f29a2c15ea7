"""Call actors, wait for the results and translate Ray's exceptions.

A call raises the error that the method raised. It raises `BrokerUnavailable` if there is no actor (nothing was done),
and `Timeout` or `ConnectionLost` if the outcome is unknown. Ray does not report whether an actor crashed before a call
or during it.
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
    """Return the handle of a named actor; raise BrokerUnavailable if there is none."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError as error:
        raise BrokerUnavailable(name, f"no such actor in namespace {namespace}") from error


def broker_names(namespace: str) -> list[str]:
    """Return the actor names of all brokers in the namespace, sorted.

    Brokers that are being restarted are included.
    """
    every = ray.util.list_named_actors(all_namespaces=True)
    names = (each["name"] for each in every if each["namespace"] == namespace)
    return sorted(name for name in names if is_broker_name(name))


def call(name: str, handle: ActorHandle[Any], method: str, *args: Any, timeout: float) -> Any:
    """Call `method` of the actor called `name` and return its result.

    Raises:
        RayMQError: the error that the method raised.
        Timeout: no answer within `timeout` seconds, or the actor was interrupted; the call may have been carried out.
        ConnectionLost: the actor has crashed, perhaps during the call, which may have been carried out.
        BrokerUnavailable: the actor could not be started; the call was not carried out.
    """
    return result(name, getattr(handle, method).remote(*args), timeout)


async def call_async(name: str, handle: ActorHandle[Any], method: str, *args: Any, timeout: float) -> Any:
    """Call a method as `call` does, for asyncio code.

    Waiting takes no thread, and concurrent calls do not wait for each other.
    """
    with _as_ours(name, timeout):
        async with asyncio.timeout(timeout):
            # Large arguments are copied, which would block the event loop.
            ref = await asyncio.to_thread(getattr(handle, method).remote, *args)
            return await asyncio.wrap_future(ref.future())


def result(name: str, ref: ray.ObjectRef[Any], timeout: float) -> Any:
    """Return the value of a call that was started; raise as `call`."""
    with _as_ours(name, timeout):
        return ray.get(ref, timeout=timeout)


@contextlib.contextmanager
def _as_ours(name: str, timeout: float) -> Iterator[None]:
    """Convert Ray's exceptions within the block to RayMQ's errors."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, RayMQError):
            raise error.cause from None
        raise RayMQError(f"{name}: {error.cause}") from error
    except (GetTimeoutError, TimeoutError, ActorUnavailableError, TaskCancelledError) as error:
        raise Timeout(name, f"{no_answer_within(timeout)}; the call may have been carried out") from error
    except ActorUnschedulableError as error:
        raise BrokerUnavailable(name, f"the actor could not be started: {str(error).splitlines()[0]}") from error
    except (ActorDiedError, RayActorError) as error:
        raise ConnectionLost(name, f"the actor is dead: {str(error).splitlines()[0]}") from error
