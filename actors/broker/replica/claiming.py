"""A process makes its claim: this directory, by this process, is that replica of the group."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replication.claims import (
    ClaimWaits,
    ReplicaClaim,
    claimed,
    former_lease,
    founding_wait,
)
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from raymq.actors.keeper.messages import Registered
from raymq.actors.keeper.register import Register
from raymq.actors.wire.commands.replication import read_replica_status, replica_status_command
from raymq.actors.wire.connection import ConnectionPool
from raymq.storage.failpoints import failpoint

#: How long another process is asked whether it is the one that is registered.
_ASK_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 0.3
#: Keepers that are busy may miss one question.
_READS_OF_FORMER_LEASE: Final = 3

_log = logging.getLogger(__name__)


async def end_former_lease(register: Register, group: str, number: int, place: str) -> None:
    """Have the lease of this replica's last process ended, which was killed as master; never fails.

    Only for a process without a registered nonce that holds the `ProcessLock` at `place`; why that is safe
    `replication.claims` says. Where it does not succeed, the lease ends in its time.
    """
    if not place:
        return
    for _ in range(_READS_OF_FORMER_LEASE):
        try:
            state = (await register.read(group)).value
            break
        except RegisterError as error:
            _log.debug("%s: the lease of the last process is not ended yet: %s", group, error)
    else:
        return
    lease = former_lease(state if isinstance(state, GroupState) else None, number, place)
    if lease is not None:
        _log.info("%s: the process that was master of epoch %d is dead: its lease is ended", group, lease.epoch)
        await register.release(group, lease)


class Claiming:
    """The claim of one process. Used on the broker's loop.

    Attributes:
        nonce: that of the process.
        trouble: what it waits for.
    """

    def __init__(
        self,
        register: Register,
        pool: ConnectionPool,
        memory: ReplicaFile,
        group: str,
        number: int,
        address: str,
        nonce: str,
        *,
        is_empty: bool,
    ) -> None:
        """`address`: where its broker listens. `is_empty`: nothing is in the directory."""
        self.nonce = nonce
        self.trouble = "not claimed yet"
        self._register = register
        self._pool = pool
        self._memory = memory
        self._group = group
        self._number = number
        self._address = address
        self._is_empty = is_empty

    async def make(self) -> Registered:
        """What the register says with the claim made; it takes as long as it takes.

        Raises:
            ClaimRefused: it is another directory, or a copy, or one that is in use.
            StoreFull, StoreFailed: what was claimed cannot be written down.
        """
        before = self._memory.add_nonce(self.nonce)
        failpoint("claim.after_nonce")
        while True:
            try:
                now = await self._register.settle(self._group)
                state = now.value if isinstance(now.value, GroupState) else None
                waits = founding_wait(state, self._number)
                if state is None or waits is not None:
                    self.trouble = waits or ""
                else:
                    after = claimed(state, self._claim(before), registered_answers=await self._answers(state))
                    if after != state:
                        now = await self._register.change(self._group, now, after)
                    failpoint("claim.after_register")
                    self._memory.change(nonces=(self.nonce,))
                    failpoint("claim.after_done")
                    self.trouble = ""
                    return now
            except (RegisterError, ClaimWaits) as error:
                self.trouble = f"no claim yet: {error}"
                _log.debug("%s: %s", self._group, self.trouble)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def check_is_next(self, epoch: int, known: GroupState | None) -> None:
        """Raise unless an election is of that epoch, or the next one may be; `known`: what the register said lately.

        Who follows nobody before an epoch that will never come is taken away for good.

        Raises:
            InvalidInput: it may not. BrokerUnavailable: nobody can say now.
        """
        if known is not None and epoch <= known.epoch + 1:
            return
        try:
            now = (await self._register.read(self._group)).value
        except RegisterError as error:
            raise BrokerUnavailable(self._group, f"the register is not read: {error}") from error
        if not isinstance(now, GroupState) or epoch > now.epoch + 1:
            raise InvalidInput("epoch", "that of an election, or the next one", epoch)

    def _claim(self, before: tuple[str, ...]) -> ReplicaClaim:
        memory = self._memory.now
        record = ReplicaRecord(memory.identity, self._address, self.nonce)
        return ReplicaClaim(self._number, record, before, tail_lost=memory.tail_lost, is_empty=self._is_empty)

    async def _answers(self, state: GroupState) -> bool:
        """Whether the process that is registered now, elsewhere, answers."""
        known = state.replicas.get(self._number)
        if known is None or known.address == self._address or known.nonce == self.nonce:
            return False
        try:
            answer = await self._pool.request(known.address, replica_status_command(), _ASK_SECONDS)
            return read_replica_status(answer).nonce == known.nonce
        except RayMQError:
            return False
