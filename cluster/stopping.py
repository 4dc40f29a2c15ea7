"""Stopping a cluster's actors: all of a kind at once, within one budget, and saying which did not end cleanly."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray._private import state as ray_state

from raymq.actors import handles
from raymq.actors.errors import BrokerUnavailable, RayMQError, Timeout
from raymq.actors.naming import (
    COORDINATOR_NAME,
    SCHEDULER_NAME,
    is_broker_name,
    is_keeper_name,
    is_name_server_name,
    is_producer_name,
)
from raymq.actors.protocol import BrokerInfo
from raymq.cluster import launching

_POLL_SECONDS = 0.02
#: What is kept of the budget for ending by force what did not end by itself.
_FORCE_SHARE = 0.25
#: A question that an actor answers at once if it can.
_ASK_SECONDS = 1.0


@dataclass(slots=True)
class _Ending:
    """One actor on its way out: `ref` is the call that stops it, `pid_ref` the one that asks for its process."""

    name: str
    handle: Any
    pid_ref: Any
    ref: Any
    pid: int | None = None
    #: Why it did not end cleanly; None if it did.
    trouble: str | None = None


def stop_actors(namespace: str, timeout: float) -> None:
    """Stop every actor in order: who gives work, or elects masters, first; masters next, while their replicas are there
    to take what is under way; the replicas, the keepers that gave the leases, name servers last.

    Only names of RayMQ's layout are looked at: other actors of the namespace are somebody else's. The scheduler and the
    coordinator keep nothing: one that is killed since it does not answer has ended as cleanly as another.

    Raises:
        BrokerUnavailable: names those that did not end cleanly within `timeout` seconds (they were killed, and a
            broker's store is recovered at its next start), or that did not end at all.
    """
    deadline = time.monotonic() + timeout
    there = launching.names(namespace)
    masters = _masters(namespace, [name for name in there if is_broker_name(name)])
    kinds = (
        [name for name in there if name in (SCHEDULER_NAME, COORDINATOR_NAME) or is_producer_name(name)],
        masters,
        [name for name in there if is_broker_name(name) and name not in masters],
        [name for name in there if is_keeper_name(name)],
        [name for name in there if is_name_server_name(name)],
    )
    unclean: dict[str, str] = {}
    left: list[str] = []
    for kind, share in zip(kinds, (0.2, 0.75, 0.7, 0.6, 1.0), strict=True):
        until = min(deadline, time.monotonic() + (deadline - time.monotonic()) * share)
        killed, there_still = _stop(namespace, kind, until)
        unclean |= killed
        left += there_still
    for name in (SCHEDULER_NAME, COORDINATOR_NAME, *left):
        unclean.pop(name, None)
    troubles = [f"{', '.join(left)} did not end in time"] if left else []
    if unclean:
        reasons = "; ".join(f"{name}: {why}" for name, why in unclean.items())
        troubles.append(f"not stopped cleanly, and killed: {reasons}")
    if troubles:
        raise BrokerUnavailable(
            ", ".join([*left, *unclean]),
            "; ".join(troubles),
            remedy="the data stay; what a broker had not flushed is recovered at its next start",
        )


def _masters(namespace: str, brokers: Sequence[str]) -> list[str]:
    """Those that are their groups' masters, as far as they say it; all, where each group has one copy."""
    if not any("." in name for name in brokers):
        return list(brokers)
    asked: dict[str, Any] = {}
    for name in brokers:
        with contextlib.suppress(RayMQError):
            handle = handles.find(name, namespace)
            if hasattr(handle, "status"):
                asked[name] = handle.status.remote()
    until, masters = time.monotonic() + _ASK_SECONDS, []
    for name, ref in asked.items():
        with contextlib.suppress(RayMQError):
            told: BrokerInfo = handles.result(name, ref, max(0.0, until - time.monotonic()))
            if told.role == "master":
                masters.append(name)
    return masters


def stop_together(namespace: str, names: Sequence[str], deadline: float) -> dict[str, str]:
    """Ask all of them to stop, then end them; of those that did not end cleanly why, by name.

    Raises:
        BrokerUnavailable: some are there still.
    """
    unclean, left = _stop(namespace, names, deadline)
    if left:
        raise BrokerUnavailable(", ".join(left), "it did not end in time")
    return unclean


def _stop(namespace: str, names: Sequence[str], deadline: float) -> tuple[dict[str, str], list[str]]:
    """As `stop_together`; returns those that are there still, too."""
    endings, asked = [], time.monotonic()
    for name in names:
        try:
            handle = handles.find(name, namespace)
        except RayMQError:
            continue
        if hasattr(handle, "stop") and hasattr(handle, "pid"):  # else it only has the name of one of ours
            endings.append(_Ending(name, handle, handle.pid.remote(), handle.stop.remote()))
    polite = deadline - (deadline - time.monotonic()) * _FORCE_SHARE
    for each in endings:
        if _is_here(each.handle):  # else its number may be that of another process here
            each.pid = _pid(each, min(polite, time.monotonic() + _ASK_SECONDS))
    waiting = list(endings)
    while waiting and time.monotonic() < polite:
        waiting = [each for each in waiting if not _has_stopped(each, polite)]
    for each in waiting:
        each.trouble = f"no answer within {time.monotonic() - asked:.1f} s"
    launching.kill(namespace, [each.name for each in endings])
    left = _await_end(namespace, endings, deadline)
    return {each.name: each.trouble for each in endings if each.trouble is not None}, left


def _is_here(handle: Any) -> bool:
    """Whether the actor's process is on this machine, as Ray's tables say."""
    known = ray_state.actors(handle._actor_id.hex())  # noqa: SLF001 - there is no other way to it
    here: bool = known["Address"]["NodeID"] == ray.get_runtime_context().get_node_id()
    return here


def _pid(ending: _Ending, until: float) -> int | None:
    try:
        told: int = handles.result(ending.name, ending.pid_ref, max(0.0, until - time.monotonic()))
    except RayMQError:
        return None
    return told


def _has_stopped(ending: _Ending, until: float) -> bool:
    """Whether its stop has an outcome; one that is just being restarted is asked again."""
    ready, _ = ray.wait([ending.ref], timeout=max(0.0, min(0.1, until - time.monotonic())))
    if not ready:
        return False
    try:
        handles.result(ending.name, ending.ref, 0)
    except Timeout:  # it died under the call, and Ray brings it back
        time.sleep(_POLL_SECONDS)
        ending.ref = ending.handle.stop.remote()
        return False
    except RayMQError as error:
        ending.trouble = str(error).removeprefix(f"{ending.name}: ")
    return True


def _await_end(namespace: str, endings: Sequence[_Ending], deadline: float) -> list[str]:
    """Wait until the names are free and the processes on this machine are gone; the names of those that are not."""
    while True:
        taken = set(launching.names(namespace))
        left = [each.name for each in endings if each.name in taken or (each.pid is not None and _is_ours(each.pid))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_SECONDS)


def _is_ours(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "ray::" in " ".join(process.cmdline())
    except psutil.Error:
        return False
