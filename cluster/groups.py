"""What a start does for groups of several replicas: they are founded, and waited for until each has a master."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from raymq.actors import handles
from raymq.actors.actor_options import make_coordinator
from raymq.actors.errors import BrokerUnavailable, RayMQError
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.keeper.errors import RegisterConflict, RegisterError
from raymq.actors.keeper.group_state import GroupState, ReplicationPolicy
from raymq.actors.keeper.register import Register
from raymq.actors.keeper.serving.location import open_register
from raymq.actors.naming import COORDINATOR_NAME
from raymq.actors.protocol import BrokerInfo, CoordinatorSpec, Tls
from raymq.actors.wire.tls import client_context

#: How long founding the groups may take: a majority of keepers has to be there.
_FOUND_SECONDS: Final = 30.0
#: How long it may take until each group has a master.
_MASTER_SECONDS: Final = 60.0
#: How long the other replicas of a group are waited for once it has a master. They may have to take a lot.
_IN_SYNC_SECONDS: Final = 5.0
_START_SECONDS: Final = 120.0
_CALL_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.2

_log = logging.getLogger(__name__)


def found(register_at: Mapping[str, Any], tls: Tls | None, groups: Sequence[str], policy: ReplicationPolicy) -> None:
    """Put a group that the register does not know into it, without replicas: the first one comes by itself.

    Args:
        register_at: where the register is (`raymq.actors.keeper.serving.location`).

    Raises:
        RegisterError: the register does not answer.
    """
    loop = EventLoopThread("groups")

    async def all_of_them() -> None:
        opened = open_register(register_at, None if tls is None else client_context(tls))
        try:
            for group in groups:
                await _found(opened.register, group, policy)
        finally:
            await opened.close()

    try:
        loop.run(all_of_them())
    finally:
        loop.stop()


async def _found(register: Register, group: str, policy: ReplicationPolicy) -> None:
    deadline = time.monotonic() + _FOUND_SECONDS
    while True:
        try:
            now = await register.settle(group)
            if now.value is None:
                await register.change(group, now, GroupState(policy=policy))
        except RegisterConflict:
            pass
        except RegisterError:
            if time.monotonic() > deadline:
                raise
        else:
            return
        await asyncio.sleep(_RETRY_SECONDS)


def bring_up(spec: CoordinatorSpec, brokers: Mapping[str, Sequence[tuple[str, Any]]]) -> None:
    """Start the coordinator, and wait until each group has a master whose replicas are in sync.

    All replicas have made their claims by now: so the one that has most is chosen.

    Args:
        brokers: the actor names and handles of each group's replicas.

    Raises:
        BrokerUnavailable: a group gets no master; what is in the way.
    """
    coordinator = make_coordinator(spec)
    handles.call(COORDINATOR_NAME, coordinator, "pid", timeout=_START_SECONDS)
    deadline = time.monotonic() + _MASTER_SECONDS
    for group, replicas in brokers.items():
        while (master := _master_of(replicas)) is None:
            if time.monotonic() > deadline:
                told = handles.call(COORDINATOR_NAME, coordinator, "status", 5.0, 5.0, timeout=_START_SECONDS)
                raise BrokerUnavailable(
                    group, f"it has no master: {told['troubles'].get(group, 'it is not known why')}"
                )
            time.sleep(_POLL_SECONDS)
    until = time.monotonic() + _IN_SYNC_SECONDS
    for group, replicas in brokers.items():
        while (master := _master_of(replicas)) is None or len(master.in_sync or ()) < len(replicas):
            if time.monotonic() > until:
                in_sync = [] if master is None else master.in_sync
                _log.warning("%s: of its %d replicas these are in sync so far: %s", group, len(replicas), in_sync)
                break
            time.sleep(_POLL_SECONDS)


def _master_of(replicas: Sequence[tuple[str, Any]]) -> BrokerInfo | None:
    """What the group's master says of itself, once it is in the routes of every name server."""
    for name, handle in replicas:
        try:
            told: BrokerInfo = handles.call(name, handle, "status", timeout=_CALL_SECONDS)
            if told.role == "master" and not handles.call(name, handle, "troubles", timeout=_CALL_SECONDS):
                return told
        except RayMQError:  # it may be about to be restarted
            continue
    return None
