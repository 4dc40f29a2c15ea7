"""A coordinator without Ray: looks at each group a few times a second, and does what `GroupWatch` says.

It may be killed, doubled, or started anew anywhere at any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from raymq.actors.coordinator.asking import ReplicaQuestions
from raymq.actors.coordinator.watching import TURN_SECONDS, Change, GroupWatch, LeaveOffice, Rest, Seal
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterHeld, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState, ReplicationPolicy
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.messages import Registered
from raymq.actors.keeper.register import Register
from raymq.actors.keeper.serving.location import OpenRegister, open_register
from raymq.actors.protocol import CoordinatorSpec
from raymq.actors.wire.tls import client_context
from raymq.storage.clock import boottime

#: A lease that is in the way has ended so long after a keeper's word, at the earliest.
_LEAST_PAUSE_SECONDS: Final = 0.02

_log = logging.getLogger(__name__)


class CoordinatorService:
    """One running coordinator. Made by `start`, used and stopped on its event loop."""

    def __init__(
        self, register: Register, questions: ReplicaQuestions, policies: Mapping[str, ReplicationPolicy]
    ) -> None:
        """`policies`: the groups to look after, and what each is to promise."""
        self._register = register
        self._questions = questions
        self._policies = dict(policies)
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._opened: OpenRegister | None = None
        #: By group: what is in the way of its having a master.
        self.troubles: dict[str, str] = {}
        #: How many elections this coordinator has brought about.
        self.elections = 0

    @classmethod
    async def start(cls, spec: CoordinatorSpec) -> CoordinatorService:
        """Begin to watch the groups of a cluster."""
        tls = None if spec.tls is None else client_context(spec.tls)
        opened = open_register(spec.keepers, tls)
        policy = ReplicationPolicy(spec.replication, spec.min_in_sync)
        service = cls(opened.register, ReplicaQuestions(tls), dict.fromkeys(spec.groups, policy))
        service._opened = opened
        service.watch()
        return service

    def watch(self) -> None:
        """Begin."""
        for group in self._policies:
            self._begin(group)

    def watch_only(self, groups: Collection[str], policy: ReplicationPolicy) -> None:
        """From now on these are the groups; those that are new are to promise `policy`."""
        for group in self._policies.keys() - set(groups):
            del self._policies[group]
            self._watches.pop(group).cancel()
            self.troubles.pop(group, None)
        for group in sorted(set(groups) - self._policies.keys()):
            self._policies[group] = policy
            self._begin(group)

    def _begin(self, group: str) -> None:
        self.troubles[group] = "it has not been looked at yet"
        self._watches[group] = asyncio.get_running_loop().create_task(self._look_after(group))

    async def stop(self) -> None:
        """End; masters go on."""
        tasks = list(self._watches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._questions.close()
        if self._opened is not None:
            await self._opened.close()

    def status(self) -> dict[str, Any]:
        """For operators."""
        return {"groups": sorted(self._watches), "troubles": dict(self.troubles), "elections": self.elections}

    async def _look_after(self, group: str) -> None:
        watch = GroupWatch(group, boottime, self._policies[group])
        unknown = False
        while True:
            pause = TURN_SECONDS
            try:
                now = await (self._register.settle(group) if unknown else self._register.read(group))
                unknown = False
                await self._turn(group, watch, now)
                pause = watch.turn_seconds
            except RegisterHeld as held:
                pause = min(watch.turn_seconds, max(held.wait_seconds, _LEAST_PAUSE_SECONDS))
                self.troubles[group] = "the lease of its master has not ended"
            except RegisterConflict:
                pause = 0.0  # somebody else was faster: what stands is looked at
            except RegisterError as error:
                unknown = isinstance(error, RegisterUnknown)
                self.troubles[group] = str(error)
            except Exception as error:  # noqa: BLE001 - the next turn may do, and the other groups' go on
                _log.exception("%s: a turn of the coordinator failed", group)
                self.troubles[group] = repr(error)
            await asyncio.sleep(pause)

    async def _turn(self, group: str, watch: GroupWatch, now: Registered) -> None:
        """Do what is to be done, step by step, until there is nothing more."""
        while True:
            state = now.value
            assert not isinstance(state, KeeperSet)
            master = None if state is None else state.master
            heard = await self._questions.status(watch.asked(state))
            step: Rest | Change | Seal | LeaveOffice = watch.next(state, heard)
            if isinstance(step, Seal):
                assert isinstance(state, GroupState)
                step = watch.elect(state, *await self._questions.seal_and_status(state.replicas, state.epoch))
            if isinstance(step, LeaveOffice):
                assert isinstance(state, GroupState)
                assert master is not None
                _log.warning("%s: replica %d hands over: %s", group, master, step.why)
                await self._questions.seal({master: state.replicas[master]}, state.epoch + 1)
                return
            if isinstance(step, Rest):
                self.troubles.pop(group, None)
                if step.trouble:
                    self.troubles[group] = step.trouble
                return
            now = await self._register.change(group, now, step.after)
            self.elections += step.after.master is not None and master is None
            _log.warning("%s %s", group, step.why)
