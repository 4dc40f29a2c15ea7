"""A coordinator without Ray: runs the `FailoverMonitor` of each group several times a second.

It may be killed or restarted at any time, and several may run at once on any machines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from raymq.actors.coordinator.failover_monitor import (
    CHECK_SECONDS,
    FailoverMonitor,
    FenceReplicas,
    Idle,
    StepDown,
    UpdateRegister,
)
from raymq.actors.coordinator.replica_client import ReplicaClient
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterHeld, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState, ReplicationPolicy
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.register import Register
from raymq.actors.keeper.serving.register_location import OpenRegister, open_register
from raymq.actors.protocol import CoordinatorSpec
from raymq.actors.wire.tls import client_context
from raymq.storage.clock import boottime

#: The shortest pause before a retry after a lease has blocked a change, whatever wait the keeper reports.
_LEAST_PAUSE_SECONDS: Final = 0.02

_log = logging.getLogger(__name__)


class CoordinatorService:
    """One running coordinator. Made by `start`, used and stopped on its event loop."""

    def __init__(
        self, register: Register, replica_client: ReplicaClient, policies: Mapping[str, ReplicationPolicy]
    ) -> None:
        """Start without watching.

        `policies`: the groups to watch, and the replication policy that each of them is to have.
        """
        self._register = register
        self._replica_client = replica_client
        self._policies = dict(policies)
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._opened: OpenRegister | None = None
        #: By group: why it has no master.
        self.troubles: dict[str, str] = {}
        #: The number of elections that this coordinator has completed.
        self.elections = 0

    @classmethod
    async def start(cls, spec: CoordinatorSpec) -> CoordinatorService:
        """Begin to watch the groups of a cluster."""
        tls = None if spec.tls is None else client_context(spec.tls)
        opened = open_register(spec.keepers, tls)
        policy = ReplicationPolicy(spec.replication, spec.min_in_sync)
        service = cls(opened.register, ReplicaClient(tls), dict.fromkeys(spec.groups, policy))
        service._opened = opened
        service.watch()
        return service

    def watch(self) -> None:
        """Begin to watch all groups."""
        for group in self._policies:
            self._begin(group)

    def set_groups(self, groups: Collection[str], policy: ReplicationPolicy) -> None:
        """Replace the groups to watch; new groups get `policy`."""
        for group in self._policies.keys() - set(groups):
            del self._policies[group]
            self._watches.pop(group).cancel()
            self.troubles.pop(group, None)
        for group in sorted(set(groups) - self._policies.keys()):
            self._policies[group] = policy
            self._begin(group)

    def _begin(self, group: str) -> None:
        self.troubles[group] = "the group has not been checked yet"
        self._watches[group] = asyncio.get_running_loop().create_task(self._supervise(group))

    async def stop(self) -> None:
        """Stop watching; the masters continue."""
        tasks = list(self._watches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._replica_client.close()
        if self._opened is not None:
            await self._opened.close()

    def status(self) -> dict[str, Any]:
        """Return the groups, their troubles and the number of elections, for operators."""
        return {"groups": sorted(self._watches), "troubles": dict(self.troubles), "elections": self.elections}

    async def _supervise(self, group: str) -> None:
        watch = FailoverMonitor(group, boottime, self._policies[group])
        unknown = False
        while True:
            pause = CHECK_SECONDS
            try:
                now = await (self._register.settle(group) if unknown else self._register.read(group))
                unknown = False
                await self._turn(group, watch, now)
                pause = watch.check_interval
            except RegisterHeld as held:
                pause = min(watch.check_interval, max(held.wait_seconds, _LEAST_PAUSE_SECONDS))
                self.troubles[group] = "the lease of its master has not ended"
            except RegisterConflict:
                pause = 0.0  # another process has changed the value: read it again
            except RegisterError as error:
                unknown = isinstance(error, RegisterUnknown)
                self.troubles[group] = str(error)
            except Exception as error:  # noqa: BLE001 - the next turn may succeed, and other groups are not affected
                _log.exception("%s: a check by the coordinator failed", group)
                self.troubles[group] = repr(error)
            await asyncio.sleep(pause)

    async def _turn(self, group: str, watch: FailoverMonitor, now: Registered) -> None:
        """Perform the steps for a group until nothing is left to do."""
        while True:
            state = now.value
            assert not isinstance(state, KeeperSet)
            master = None if state is None else state.master
            statuses = await self._replica_client.status(watch.asked(state))
            step: Idle | UpdateRegister | FenceReplicas | StepDown = watch.next(state, statuses)
            if isinstance(step, FenceReplicas):
                assert isinstance(state, GroupState)
                step = watch.elect(state, *await self._replica_client.fence_and_status(state.replicas, state.epoch))
            if isinstance(step, StepDown):
                assert isinstance(state, GroupState)
                assert master is not None
                _log.warning("%s: replica %d steps down: %s", group, master, step.why)
                await self._replica_client.fence({master: state.replicas[master]}, state.epoch + 1)
                return
            if isinstance(step, Idle):
                self.troubles.pop(group, None)
                if step.trouble:
                    self.troubles[group] = step.trouble
                return
            now = await self._register.change(group, now, step.after)
            self.elections += step.after.master is not None and master is None
            _log.warning("%s %s", group, step.why)
