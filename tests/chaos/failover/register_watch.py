"""Watch the register continuously from a point that reaches all hosts, and record each group's states."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from raymq.actors.errors import RayMQError
from raymq.actors.event_loop import EventLoopThread
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.serving.register_location import OpenRegister, open_register
from raymq.actors.wire.commands.replication_commands import ReplicaStatus, read_replica_status, replica_status_command
from raymq.actors.wire.connection_pool import ConnectionPool
from tests.chaos.failover.recorded import Reigned

_LOOK_SECONDS: Final = 0.2
#: The longest change of the set of keepers, which waits for leases to end.
_CHANGE_SECONDS: Final = 20.0
_STATUS_SECONDS: Final = 1.0


class RegisterWatch:
    """Watch one group from construction until `stop`; for any thread.

    Attributes:
        reigned: each change of the state.
        state: the last state, and when it was read.
    """

    def __init__(self, register_at: Mapping[str, Any], group: str) -> None:
        """`register_at`: as `raymq.actors.keeper.serving.register_location`."""
        self.reigned: list[Reigned] = []
        self.state: GroupState | None = None
        self.seen_at = 0.0
        self._group = group
        self._loop = EventLoopThread("register-watch")
        self._open, self._pool = self._loop.run(self._opened(register_at), 10.0)
        self._watching = self._loop.submit(self._watch())

    def stop(self) -> None:
        self._watching.cancel()
        self._loop.run(self._open.close(), 10.0)
        self._loop.run(self._pool.close(), 10.0)
        self._loop.stop()

    def settled_in_sync(self) -> frozenset[int]:
        """Return the in-sync set after settling, when no earlier change can succeed; empty if unknown."""
        try:
            value = self._loop.run(self._open.register.settle(self._group), _CHANGE_SECONDS).value
        except (RegisterError, TimeoutError):
            return frozenset()
        return value.in_sync if isinstance(value, GroupState) else frozenset()

    def master_status(self) -> ReplicaStatus | None:
        """Return the status of the group's master; None if it does not answer."""
        state = self.state
        if state is None or state.master is None:
            return None
        address = state.replicas[state.master].address
        try:
            asked = self._pool.request(address, replica_status_command(), _STATUS_SECONDS, patient=True)
            return read_replica_status(self._loop.run(asked, 2 * _STATUS_SECONDS))
        except (RayMQError, TimeoutError):
            return None

    def take_in(self, number: int, address: str, begin_anew: Callable[[str], None]) -> bool:
        """Admit a keeper that lost its file by the majority of the others; return whether that worked.

        `begin_anew` is called in between, with the keeper's new incarnation.
        """
        try:
            self._loop.run(self._take_in(number, address, begin_anew), _CHANGE_SECONDS)
        except (RegisterError, TimeoutError):
            return False
        return True

    async def _opened(self, register_at: Mapping[str, Any]) -> tuple[OpenRegister, ConnectionPool]:
        return open_register(register_at, None), ConnectionPool()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(RegisterError):
                value = (await self._open.register.read(self._group)).value
                if isinstance(value, GroupState):
                    self._note(value)
            await asyncio.sleep(_LOOK_SECONDS)

    def _note(self, state: GroupState) -> None:
        reigned = Reigned(time.monotonic(), self._group, state.epoch, state.master or 0, len(state.in_sync))
        last = self.reigned[-1] if self.reigned else None
        if last is None or (last.epoch, last.master, last.in_sync) != (reigned.epoch, reigned.master, reigned.in_sync):
            self.reigned.append(reigned)
        self.state, self.seen_at = state, reigned.at

    async def _take_in(self, number: int, address: str, begin_anew: Callable[[str], None]) -> None:
        register = self._open.register
        assert isinstance(register, KeeperRegister)
        after = await register.finish_change()
        if number in after.members:
            await register.remove_keeper(number)
        incarnation = uuid.uuid4().hex
        await asyncio.to_thread(begin_anew, incarnation)
        await register.add_keeper(number, KeeperMember(address, incarnation))


def new_keeper_set(cluster: str, addresses: Mapping[int, str]) -> KeeperSet:
    """Make a new set of keepers."""
    return KeeperSet(1, {number: KeeperMember(address, uuid.uuid4().hex) for number, address in addresses.items()})
