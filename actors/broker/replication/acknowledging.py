"""When a message may be acknowledged, and when it may not even be written.

    before a byte is written    the lease holds, and with sync enough replicas are in sync; else it is not stored
    after the last await        the lease still holds; with sync all of the set have it, and the set is large enough

The second look is the last thing before the answer is written: between an await and the answer a process may have been
stopped for longer than its lease.
"""

from __future__ import annotations

import enum

from raymq.actors.broker.replication.in_sync import InSyncSet
from raymq.actors.broker.replication.positions import StreamPosition
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.keeper.leases import MasterLease
from raymq.actors.protocol import SendStatus

#: RocketMQ's words, which its clients may look for.
TOO_FEW: str = "in-sync replicas not enough"
NOT_MASTER: str = "this broker is not the master now"


class AckOutcome(enum.Enum):
    """What may be said of a message that is written."""

    #: SEND_OK.
    SAFE = "safe"
    #: Not yet anything.
    WAIT = "wait"
    #: It is written, and this broker may not speak for the group any more: the outcome is unknown.
    UNKNOWN = "unknown"


class AckRule:
    """The rule of one group in one epoch. Belongs to the broker's loop; nothing here waits."""

    def __init__(self, policy: ReplicationPolicy, in_sync: InSyncSet, lease: MasterLease, own: int) -> None:
        self._policy = policy
        self._in_sync = in_sync
        self._lease = lease
        self._own = own

    def refusal(self) -> str | None:
        """Why a message is refused before a byte of it is written; None: it is taken."""
        if not self._lease.holds:
            return NOT_MASTER
        if self._has_too_few():
            return TOO_FEW
        return None

    def outcome(self, end: StreamPosition) -> AckOutcome:
        """What may be said of what ends at `end`. Nothing may be awaited between this call and the answer."""
        safe = self._in_sync.acknowledged_by(self._own)
        if self._policy.mode == "sync":
            # A member may have left meanwhile: what the rest has is not what was promised.
            is_done = self._in_sync.confirmed.covers(end) and not self._has_too_few()
        else:
            is_done = safe is not None and safe.covers(end)
        if not self._lease.holds:
            return AckOutcome.UNKNOWN
        return AckOutcome.SAFE if is_done else AckOutcome.WAIT

    def timed_out(self) -> SendStatus:
        """What to say of a message that had to wait for too long; it is in the master's log."""
        return SendStatus.SLAVE_NOT_AVAILABLE if self._has_too_few() else SendStatus.FLUSH_SLAVE_TIMEOUT

    def _has_too_few(self) -> bool:
        return self._policy.mode == "sync" and len(self._in_sync.surely) < self._policy.min_in_sync
