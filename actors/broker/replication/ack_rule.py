"""Decide when a message may be acknowledged, and when it must not be written.

    before a byte is written    the lease holds, and with sync enough replicas are in sync; else it is not stored
    after the last await        the lease still holds; with sync the whole set has it, and the set is large enough

The second check is the last thing before the answer is written: between an await and the answer a process may have been
stopped for longer than its lease.
"""

from __future__ import annotations

import enum

from raymq.actors.broker.replication.in_sync_set import InSyncSet
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.keeper.group_state import ReplicationPolicy
from raymq.actors.keeper.master_lease import MasterLease
from raymq.actors.protocol import SendStatus

#: RocketMQ's words, for which its clients may look.
TOO_FEW: str = "in-sync replicas not enough"
NOT_MASTER: str = "this broker is not the master now"


class AckOutcome(enum.Enum):
    """The answer that a written message may get."""

    #: Answer SEND_OK.
    SAFE = "safe"
    #: Do not answer yet.
    WAIT = "wait"
    #: It is written, but this broker is no longer surely master: the outcome is unknown.
    UNKNOWN = "unknown"


class AckRule:
    """The rule of one group in one epoch.

    It belongs to the broker's loop; no method waits.
    """

    def __init__(self, policy: ReplicationPolicy, in_sync: InSyncSet, lease: MasterLease, own: int) -> None:
        self._policy = policy
        self._in_sync = in_sync
        self._lease = lease
        self._own = own

    def refusal(self) -> str | None:
        """Return why a message is refused before it is written, or None."""
        if not self._lease.holds:
            return NOT_MASTER
        if self._has_too_few():
            return TOO_FEW
        return None

    def outcome(self, end: StreamPosition) -> AckOutcome:
        """Return the outcome of data that end at `end`.

        Await nothing between this call and the answer.
        """
        if not self._lease.holds:
            return AckOutcome.UNKNOWN
        if self._policy.mode == "sync":
            # A member may have left meanwhile: the remaining members may be fewer than was promised.
            is_done = self._in_sync.confirmed.covers(end) and not self._has_too_few()
        else:
            safe = self._in_sync.acknowledged_by(self._own)
            is_done = safe is not None and safe.covers(end)
        return AckOutcome.SAFE if is_done else AckOutcome.WAIT

    def timed_out(self) -> SendStatus:
        """Return the status of a message that waited too long.

        The message is in the master's log.
        """
        return SendStatus.SLAVE_NOT_AVAILABLE if self._has_too_few() else SendStatus.FLUSH_SLAVE_TIMEOUT

    def _has_too_few(self) -> bool:
        return self._policy.mode == "sync" and len(self._in_sync.guaranteed) < self._policy.min_in_sync
