"""Claim a replica of the group for this directory and this process."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from raymq.actors.broker.replica.replica_file import ReplicaFile
from raymq.actors.broker.replication.replica_claims import (
    ClaimWaits,
    ReplicaClaim,
    apply_claim,
    founding_blocker,
    predecessor_lease,
)
from raymq.actors.errors import BrokerUnavailable, InvalidInput, RayMQError
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from raymq.actors.keeper.keeper_messages import Registered
from raymq.actors.keeper.register import Register
from raymq.actors.wire.commands.replication_commands import read_replica_status, replica_status_command
from raymq.actors.wire.connection_pool import ConnectionPool
from raymq.storage.failpoints import failpoint

#: Time-out of the request whether another process is the registered one.
_ASK_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = 0.3
#: Busy keepers may miss one request.
_READS_OF_FORMER_LEASE: Final = 3

_log = logging.getLogger(__name__)


async def end_predecessor_lease(register: Register, group: str, number: int, place: str) -> None:
    """End the lease of this replica's previous process, if it was killed as master.

    It never fails. It is only for a process without a registered nonce that holds the `ProcessLock` at `place`;
    `replication.replica_claims` explains why that is safe. If it does not succeed, the lease ends by its time-out.
    """
    if not place:
        return
    for _ in range(_READS_OF_FORMER_LEASE):
        try:
            state = (await register.read(group)).value
            break
        except RegisterError as error:
            _log.debug("%s: the lease of the previous process has not ended yet: %s", group, error)
    else:
        return
    lease = predecessor_lease(state if isinstance(state, GroupState) else None, number, place)
    if lease is not None:
        _log.info("%s: the process that was master of epoch %d is dead: its lease is ended", group, lease.epoch)
        await register.release(group, lease)


class ReplicaClaimer:
    """The claim of one process. Used on the broker's loop.

    Attributes:
        nonce: that of the process.
        trouble: why the claim is not made yet.
    """

    def __init__(
        self,
        register: Register,
        pool: ConnectionPool,
        metadata: ReplicaFile,
        group: str,
        number: int,
        address: str,
        nonce: str,
        *,
        is_empty: bool,
    ) -> None:
        """Create a claim.

        `address` is where its broker listens. `is_empty`: the directory contains no data.
        """
        self.nonce = nonce
        self.trouble = "not registered yet"
        self._register = register
        self._pool = pool
        self._metadata = metadata
        self._group = group
        self._number = number
        self._address = address
        self._is_empty = is_empty

    async def make(self) -> Registered:
        """Make the claim, however long it takes, and return the register's value with it.

        Raises:
            ClaimRefused: it is another directory, or a copy, or one that is in use.
            StoreFull, StoreFailed: the claim cannot be stored in the replica's file.
        """
        before = self._metadata.add_nonce(self.nonce)
        failpoint("claim.after_nonce")
        while True:
            try:
                now = await self._register.settle(self._group)
                state = now.value if isinstance(now.value, GroupState) else None
                waits = founding_blocker(state, self._number)
                if state is None or waits is not None:
                    self.trouble = waits or ""
                else:
                    after = apply_claim(state, self._claim(before), registered_answers=await self._answers(state))
                    if after != state:
                        now = await self._register.change(self._group, now, after)
                    failpoint("claim.after_register")
                    self._metadata.change(nonces=(self.nonce,))
                    failpoint("claim.after_done")
                    self.trouble = ""
                    return now
            except (RegisterError, ClaimWaits) as error:
                self.trouble = f"not registered yet: {error}"
                _log.debug("%s: %s", self._group, self.trouble)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def check_is_next(self, epoch: int, known: GroupState | None) -> None:
        """Raise unless `epoch` is of an election or may be the next one.

        `known` is the last known value of the register. A replica fenced to an epoch that never comes would be lost to
        the group for good.

        Raises:
            InvalidInput: it may not. BrokerUnavailable: this cannot be determined now.
        """
        if known is not None and epoch <= known.epoch + 1:
            return
        try:
            now = (await self._register.read(self._group)).value
        except RegisterError as error:
            raise BrokerUnavailable(self._group, f"the register cannot be read: {error}") from error
        if not isinstance(now, GroupState) or epoch > now.epoch + 1:
            raise InvalidInput("epoch", "the epoch of an election, or the next one", epoch)

    def _claim(self, before: tuple[str, ...]) -> ReplicaClaim:
        metadata = self._metadata.now
        record = ReplicaRecord(metadata.identity, self._address, self.nonce)
        return ReplicaClaim(self._number, record, before, tail_lost=metadata.tail_lost, is_empty=self._is_empty)

    async def _answers(self, state: GroupState) -> bool:
        """Return True if another process is registered now, at another address, and answers."""
        known = state.replicas.get(self._number)
        if known is None or known.address == self._address or known.nonce == self.nonce:
            return False
        try:
            answer = await self._pool.request(known.address, replica_status_command(), _ASK_SECONDS)
            return read_replica_status(answer).nonce == known.nonce
        except RayMQError:
            return False
