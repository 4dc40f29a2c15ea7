"""Stop the actors of a cluster, kind by kind, within one time limit.

Actors of a kind are stopped at the same time. Actors that did not end cleanly are reported.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray._private import state as ray_state

from raymq.actors import actor_calls
from raymq.actors.errors import BrokerUnavailable, RayMQError, Timeout
from raymq.actors.naming import (
    CONSOLE_NAME,
    COORDINATOR_NAME,
    SCHEDULER_NAME,
    is_broker_name,
    is_keeper_name,
    is_name_server_name,
    is_producer_name,
)
from raymq.actors.protocol import BrokerInfo
from raymq.cluster import cluster_launch

#: Actors without state: one that does not answer is killed, and has ended cleanly.
_STATELESS = (SCHEDULER_NAME, COORDINATOR_NAME, CONSOLE_NAME)
_POLL_SECONDS = 0.02
#: The share of the time limit that is kept for killing actors that did not end by themselves.
_FORCE_SHARE = 0.25
#: The seconds for a request that an actor answers at once if it can.
_REQUEST_SECONDS = 1.0


@dataclass(slots=True)
class _StoppingActor:
    """An actor that is being stopped.

    `ref` is the call that stops it, `pid_ref` the call that returns its process id.
    """

    name: str
    handle: Any
    pid_ref: Any
    ref: Any
    pid: int | None = None
    #: The reason why it did not end cleanly; None if it did.
    trouble: str | None = None


def stop_actors(namespace: str, timeout: float) -> None:
    """Stop every actor of the cluster in order.

    The scheduler, the coordinator, the console and producers are stopped first, because they issue work or elect
    masters. Masters follow, while their replicas still run and can receive the messages in progress. Then follow the
    replicas, the keepers that granted the leases, and the name servers. Only actors with names of RayMQ's layout are
    stopped; other actors of the namespace belong to other programs.

    Raises:
        BrokerUnavailable: names the actors that did not end cleanly within `timeout` seconds (they were killed, and a
            broker's store is recovered at its next start), or that did not end at all.
    """
    deadline = time.monotonic() + timeout
    there = cluster_launch.names(namespace)
    masters = _masters(namespace, [name for name in there if is_broker_name(name)])
    kinds = (
        [name for name in there if name in _STATELESS or is_producer_name(name)],
        masters,
        [name for name in there if is_broker_name(name) and name not in masters],
        [name for name in there if is_keeper_name(name)],
        [name for name in there if is_name_server_name(name)],
    )
    unclean: dict[str, str] = {}
    remaining: list[str] = []
    for kind, share in zip(kinds, (0.2, 0.75, 0.7, 0.6, 1.0), strict=True):
        until = min(deadline, time.monotonic() + (deadline - time.monotonic()) * share)
        killed, there_still = _stop(namespace, kind, until)
        unclean |= killed
        remaining += there_still
    for name in (*_STATELESS, *remaining):
        unclean.pop(name, None)
    troubles = [f"{', '.join(remaining)} did not end in time"] if remaining else []
    if unclean:
        reasons = "; ".join(f"{name}: {why}" for name, why in unclean.items())
        troubles.append(f"not stopped cleanly, and killed: {reasons}")
    if troubles:
        raise BrokerUnavailable(
            ", ".join([*remaining, *unclean]),
            "; ".join(troubles),
            remedy="the data stay; what a broker had not flushed is recovered at its next start",
        )


def _masters(namespace: str, brokers: Sequence[str]) -> list[str]:
    """Return the brokers that report to be master; all if each group has one replica."""
    if not any("." in name for name in brokers):
        return list(brokers)
    requests: dict[str, Any] = {}
    for name in brokers:
        with contextlib.suppress(RayMQError):
            handle = actor_calls.find(name, namespace)
            if hasattr(handle, "status"):
                requests[name] = handle.status.remote()
    until, masters = time.monotonic() + _REQUEST_SECONDS, []
    for name, ref in requests.items():
        with contextlib.suppress(RayMQError):
            status: BrokerInfo = actor_calls.result(name, ref, max(0.0, until - time.monotonic()))
            if status.role == "master":
                masters.append(name)
    return masters


def stop_named(namespace: str, names: Sequence[str], deadline: float) -> dict[str, str]:
    """Stop the named actors, and kill those that do not end.

    Return the reasons of the actors that did not end cleanly, by name.

    Raises:
        BrokerUnavailable: some actors still exist.
    """
    unclean, remaining = _stop(namespace, names, deadline)
    if remaining:
        raise BrokerUnavailable(", ".join(remaining), "it did not end in time")
    return unclean


def _stop(namespace: str, names: Sequence[str], deadline: float) -> tuple[dict[str, str], list[str]]:
    """Stop actors as `stop_named`; also return the actors that still exist."""
    endings, asked_at = [], time.monotonic()
    for name in names:
        try:
            handle = actor_calls.find(name, namespace)
        except RayMQError:
            continue
        # Otherwise it is another program's actor with a name of ours.
        if hasattr(handle, "stop") and hasattr(handle, "pid"):
            endings.append(_StoppingActor(name, handle, handle.pid.remote(), handle.stop.remote()))
    polite = deadline - (deadline - time.monotonic()) * _FORCE_SHARE
    for each in endings:
        if _is_here(each.handle):  # Otherwise the process id may be that of another process on this machine.
            each.pid = _pid(each, min(polite, time.monotonic() + _REQUEST_SECONDS))
    waiting = list(endings)
    while waiting and time.monotonic() < polite:
        waiting = [each for each in waiting if not _has_stopped(each, polite)]
    for each in waiting:
        each.trouble = f"no answer within {time.monotonic() - asked_at:.1f} s"
    cluster_launch.kill(namespace, [each.name for each in endings])
    remaining = _await_end(namespace, endings, deadline)
    return {each.name: each.trouble for each in endings if each.trouble is not None}, remaining


def _is_here(handle: Any) -> bool:
    """Return True if the actor's process is on this machine, by Ray's tables."""
    known = ray_state.actors(handle._actor_id.hex())  # noqa: SLF001 - Ray has no public name for it
    here: bool = known["Address"]["NodeID"] == ray.get_runtime_context().get_node_id()
    return here


def _pid(ending: _StoppingActor, until: float) -> int | None:
    try:
        pid: int = actor_calls.result(ending.name, ending.pid_ref, max(0.0, until - time.monotonic()))
    except RayMQError:
        return None
    return pid


def _has_stopped(ending: _StoppingActor, until: float) -> bool:
    """Return True if the actor's stop has succeeded or failed.

    The call is repeated for an actor that is just restarting.
    """
    ready, _ = ray.wait([ending.ref], timeout=max(0.0, min(0.1, until - time.monotonic())))
    if not ready:
        return False
    try:
        actor_calls.result(ending.name, ending.ref, 0)
    except Timeout:  # The process died during the call, and Ray restarts it.
        time.sleep(_POLL_SECONDS)
        ending.ref = ending.handle.stop.remote()
        return False
    except RayMQError as error:
        ending.trouble = str(error).removeprefix(f"{ending.name}: ")
    return True


def _await_end(namespace: str, endings: Sequence[_StoppingActor], deadline: float) -> list[str]:
    """Wait until the names are free and the local processes have ended.

    Return the names of the actors that have not ended at the deadline.
    """
    while True:
        taken = set(cluster_launch.names(namespace))
        remaining = [
            each.name for each in endings if each.name in taken or (each.pid is not None and _is_ours(each.pid))
        ]
        if not remaining or time.monotonic() > deadline:
            return remaining
        time.sleep(_POLL_SECONDS)


def _is_ours(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "ray::" in " ".join(process.cmdline())
    except psutil.Error:
        return False
