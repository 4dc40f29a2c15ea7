"""Create replicated groups at a start, and wait until each has a master."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from raymq.actors import actor_calls
from raymq.actors.actor_options import make_coordinator
from raymq.actors.errors import BrokerUnavailable, RayMQError
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.keeper.errors import RegisterConflict, RegisterError
from raymq.actors.keeper.group_state import GroupState, ReplicationPolicy
from raymq.actors.keeper.register import Register
from raymq.actors.keeper.serving.register_location import open_register
from raymq.actors.naming import COORDINATOR_NAME
from raymq.actors.protocol import BrokerInfo, CoordinatorSpec, Tls
from raymq.actors.wire.tls import client_context

#: The seconds to register the groups, which needs a majority of the keepers.
_FOUND_SECONDS: Final = 30.0
#: The seconds until each group must have a master.
_MASTER_SECONDS: Final = 60.0
#: The seconds to wait for the other replicas of a group once it has a master. They may have much to copy.
_IN_SYNC_SECONDS: Final = 5.0
_START_SECONDS: Final = 120.0
_CALL_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.2

_log = logging.getLogger(__name__)


def found(register_at: Mapping[str, Any], tls: Tls | None, groups: Sequence[str], policy: ReplicationPolicy) -> None:
    """Register groups that the register lacks, without replicas.

    The first replica of a group joins by itself.

    Args:
        register_at: the location of the register (`raymq.actors.keeper.serving.register_location`).

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


def start_coordinator(spec: CoordinatorSpec, brokers: Mapping[str, Sequence[tuple[str, Any]]]) -> None:
    """Start the coordinator, and wait until each group has a master.

    It also waits, for a shorter time, until the replicas are in sync. All replicas have registered by now, so the
    replica with the most data is elected.

    Args:
        brokers: the actor names and handles of each group's replicas.

    Raises:
        BrokerUnavailable: a group gets no master; the message has the reason.
    """
    coordinator = make_coordinator(spec)
    actor_calls.call(COORDINATOR_NAME, coordinator, "pid", timeout=_START_SECONDS)
    deadline = time.monotonic() + _MASTER_SECONDS
    for group, replicas in brokers.items():
        while (master := _master_of(replicas)) is None:
            if time.monotonic() > deadline:
                status = actor_calls.call(COORDINATOR_NAME, coordinator, "status", 5.0, 5.0, timeout=_START_SECONDS)
                raise BrokerUnavailable(
                    group, f"it has no master: {status['troubles'].get(group, 'the reason is not known')}"
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
    """Return the report of the group's master, once every name server has its route."""
    for name, handle in replicas:
        try:
            status: BrokerInfo = actor_calls.call(name, handle, "status", timeout=_CALL_SECONDS)
            if status.role == "master" and not actor_calls.call(name, handle, "troubles", timeout=_CALL_SECONDS):
                return status
        except RayMQError:  # The replica may be about to be restarted.
            continue
    return None
