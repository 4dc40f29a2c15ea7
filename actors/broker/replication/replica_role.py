"""Decide the role of one broker: when it follows, leads and steps down.

No I/O, injected clock. Events are reported by method calls on `ReplicaRole`, which return a list of instructions to
carry out in order. The caller reports the result of an instruction with the method that its docstring names.

    CANDIDATE --> FOLLOWER --> PROMOTING --> LEADER --> STEPPING_DOWN
                   ^   ^           |           |             |
                   |   +-----------+           | lease lost  | replicas had a moment
                   +---------------------------+-------------+

From each state it may become REFUSED (another process is this replica) or STOPPED. A *fence* is the epoch below which
it follows and leads no more; it only rises.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from raymq.actors.backoff import Backoff
from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.keeper.group_state import GroupState


class Role(enum.Enum):
    """The role of a broker in its group."""

    #: It is not registered as its replica yet.
    CANDIDATE = enum.auto()
    #: It follows the master, or waits for one.
    FOLLOWER = enum.auto()
    #: It was elected: its epoch begins, and its store becomes a leader's.
    PROMOTING = enum.auto()
    #: It serves clients while its lease holds.
    LEADER = enum.auto()
    #: It takes no new messages; its replicas have a moment to get the rest, before its lease is released.
    STEPPING_DOWN = enum.auto()
    #: Another process is registered as this replica.
    REFUSED = enum.auto()
    STOPPED = enum.auto()


#: The roles in which a broker has the leadership of an epoch.
LEADING = frozenset({Role.PROMOTING, Role.LEADER, Role.STEPPING_DOWN})
#: The roles in which a broker takes no part in its group.
_OUTSIDE = frozenset({Role.CANDIDATE, Role.REFUSED, Role.STOPPED})


@dataclass(frozen=True, slots=True)
class BecomeFollower:
    """Refuse clients, and open the store to follow unless it is open."""


@dataclass(frozen=True, slots=True)
class ReopenStore:
    """Reopen the store, because frames of the master could not be applied."""


@dataclass(frozen=True, slots=True)
class AnnounceFollower:
    """Be in the routes as a replica of the master of this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class LeaveRoutes:
    """Leave the routes of the name servers."""


@dataclass(frozen=True, slots=True)
class MarkComplete:
    """Record that no data are lost, because this replica is in sync and follows."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the master of an epoch, then call `connected` or `connect_failed`."""

    master: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection to the master, then call `disconnected`."""


@dataclass(frozen=True, slots=True)
class StoreFence:
    """Store the fence durably, before it is answered."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BeginLeadership:
    """Store the epoch as the fence, begin it in the log, and acquire its lease.

    Then call `lease_acquired` or `promotion_failed`.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Make the store a leader's and serve clients, then call `serving` or `promotion_failed`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ApplyRegistered:
    """Apply the register's value to the leadership: its policy, in-sync set and replicas."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Take no new messages, let in-sync replicas catch up, then call `handed_over`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """Acknowledge nothing more in the epoch, and have the keepers end its lease."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EndLeadership:
    """End the leadership, its service and its store, then call `stepped_down`.

    With `is_stop` in-sync replicas get the rest first, and the lease is released.
    """

    epoch: int
    is_stop: bool = False


Instruction = (
    BecomeFollower
    | ReopenStore
    | AnnounceFollower
    | LeaveRoutes
    | MarkComplete
    | Connect
    | Disconnect
    | StoreFence
    | BeginLeadership
    | Serve
    | ApplyRegistered
    | HandOver
    | ReleaseLease
    | EndLeadership
)


class ReplicaRole:
    """The role of one process. Used on one thread.

    A report about an epoch that is not the present one is outdated and has no effect.

    Attributes:
        role: the present role.
        epoch: of its leadership, in the roles of `LEADING`.
        fenced: the epoch below which it neither follows nor leads.
        refusal: why it must not serve any more; empty: it may.
        trouble: the current problem.
    """

    def __init__(self, number: int, nonce: str, fenced: int, clock: Callable[[], float]) -> None:
        """Create the role of replica `number`, whose process is registered with `nonce`; `clock` is monotonic."""
        self.role = Role.CANDIDATE
        self.epoch = 0
        self.fenced = fenced
        self.refusal = self.trouble = ""
        self._number = number
        self._nonce = nonce
        self._clock = clock
        #: This process has given up the leadership of this epoch, and never requests its lease again: a late release
        #: would end the new lease, too.
        self._left_epoch = 0
        #: The last epoch that this process has begun, or tried to: its log may have it.
        self._begun_epoch = 0
        #: The epoch of the master to which it is connected.
        self._connected: int | None = None
        #: Delays the next connection after frames of the master could not be applied.
        self._backoff = Backoff(first=0.1, factor=2.0, cap=5.0)
        self._connect_from = 0.0

    @property
    def is_leading(self) -> bool:
        """Return True if it has the leadership of `epoch`."""
        return self.role in LEADING

    # -- the register -------------------------------------------------------------------------------------------------

    def claimed(self) -> list[Instruction]:
        """Report that this process is registered as its replica."""
        if self.role is Role.CANDIDATE:
            self.role = Role.FOLLOWER
        return []

    def claim_refused(self, reason: str) -> list[Instruction]:
        """Report that this process must not serve as the replica."""
        return self._refuse(reason)

    def register_read(self, state: GroupState, *, log_epoch: int | None, is_following: bool) -> list[Instruction]:
        """Take the role that the register's value gives to this replica.

        Args:
            log_epoch: the newest epoch in the own log; None: the store is not open to follow.
            is_following: the master has sent all that a connection begins with.
        """
        if self.role in _OUTSIDE:
            return []
        mine = state.replicas.get(self._number)
        if mine is None or mine.nonce != self._nonce:
            at = "" if mine is None else f", at {mine.address}"
            return self._refuse(f"replica {self._number} was started by another process{at}")
        if self.is_leading:
            return self._go_on_leading(state)
        if log_epoch is None:
            return [BecomeFollower()]
        if state.master == self._number:
            return self._promote(state.epoch, log_epoch)
        instructions: list[Instruction] = [AnnounceFollower(state.epoch)]
        if state.master is None:
            return instructions
        if is_following and self._number in state.in_sync:
            instructions.append(MarkComplete())
        return [*instructions, *self._follow(state.master, state.epoch, is_following=is_following)]

    def _go_on_leading(self, state: GroupState) -> list[Instruction]:
        if state.master == self._number and state.epoch <= self.epoch:
            return [ApplyRegistered()]  # an older epoch was read before the election, or the register was restored
        return [EndLeadership(self.epoch)] if state.epoch >= self.epoch else []

    def _refuse(self, reason: str) -> list[Instruction]:
        instructions: list[Instruction] = [EndLeadership(self.epoch)] if self.is_leading else []
        self.role, self.refusal = Role.REFUSED, reason
        return [*instructions, *self._disconnect(), LeaveRoutes()]  # its place in the routes is the other process's

    # -- following ----------------------------------------------------------------------------------------------------

    def _follow(self, master: int, epoch: int, *, is_following: bool) -> list[Instruction]:
        if self._connected == epoch:
            if is_following:
                self._backoff.reset()
            return []
        if self._connected is not None:
            return [Disconnect()]  # which decides whether the store must be reopened first
        if epoch < self.fenced:
            self.trouble = f"it is fenced at epoch {self.fenced}, and follows no master of epoch {epoch}"
            return []
        return [] if self._clock() < self._connect_from else [Connect(master, epoch)]

    def connected(self, epoch: int) -> list[Instruction]:
        """Report a connection to the master of this epoch."""
        self._connected, self.trouble = epoch, ""
        return [] if epoch >= self.fenced and self.role is Role.FOLLOWER else [Disconnect()]

    def connect_failed(self, reason: str) -> list[Instruction]:
        """Report why the master cannot be followed now.

        The next value of the register is another try.
        """
        self.trouble = reason
        return []

    def connection_lost(self) -> list[Instruction]:
        """Report that the master is silent, or the connection has ended."""
        return self._disconnect()

    def disconnected(self, *, is_broken: bool) -> list[Instruction]:
        """Report the end of the connection; `is_broken`: frames of the master could not be applied."""
        self._connected = None
        if not is_broken:
            return []
        self._connect_from = self._clock() + self._backoff.next_delay()
        return [ReopenStore()]

    def _disconnect(self) -> list[Instruction]:
        return [] if self._connected is None else [Disconnect()]

    # -- fencing ------------------------------------------------------------------------------------------------------

    def fence(self, epoch: int) -> list[Instruction]:
        """Follow and lead in no epoch before this one, from now on.

        A leader of an earlier epoch hands over; the request is answered once it is a follower.

        Raises:
            BrokerUnavailable: it takes no part in its group.
            InvalidInput: it is fenced to a later epoch.
        """
        if self.role in _OUTSIDE:
            raise BrokerUnavailable(f"replica {self._number}", self.refusal or "it is not registered yet")
        if epoch < self.fenced:
            raise InvalidInput("epoch", f"at least {self.fenced}, at which this replica is fenced", epoch)
        self.fenced = epoch
        if self.is_leading and self.epoch < epoch:
            return self._hand_over()
        is_behind = self._connected is not None and self._connected < epoch
        return [StoreFence(epoch), Disconnect()] if is_behind else [StoreFence(epoch)]

    # -- leading ------------------------------------------------------------------------------------------------------

    def _promote(self, epoch: int, log_epoch: int) -> list[Instruction]:
        if self._connected is not None:
            return [Disconnect()]
        if epoch < self.fenced:
            self.trouble = f"it is fenced at epoch {self.fenced}, and does not lead in epoch {epoch}"
        elif epoch <= self._left_epoch:
            self.trouble = f"it has stepped down in epoch {epoch}: another master must be elected"
        elif epoch < log_epoch or (epoch == log_epoch and epoch != self._begun_epoch):
            self.trouble = f"epoch {epoch} began before this process started"
        else:
            self.role = Role.PROMOTING
            self.epoch = self.fenced = self._begun_epoch = epoch
            return [BeginLeadership(epoch)]
        return []

    def lease_acquired(self, epoch: int) -> list[Instruction]:
        """Report that the epoch has begun, and that its lease holds."""
        return [Serve(epoch)] if self.role is Role.PROMOTING and epoch == self.epoch else []

    def serving(self, epoch: int) -> list[Instruction]:
        """Report that clients are served."""
        if self.role is Role.PROMOTING and epoch == self.epoch:
            self.role, self.trouble = Role.LEADER, ""
        return []

    def promotion_failed(self, epoch: int, *, has_others: bool) -> list[Instruction]:
        """Report that the leadership of the epoch could not begin, and has ended.

        It is tried again, unless another replica may be elected: `has_others` in sync.
        """
        if not self.is_leading or epoch != self.epoch:
            return []
        leaves = has_others or self.role is Role.STEPPING_DOWN
        self.role = Role.FOLLOWER
        if not leaves:
            return [BecomeFollower()]
        self._left_epoch = epoch
        return [ReleaseLease(epoch), BecomeFollower()]

    def disk_failing(self) -> list[Instruction]:
        """Report that an in-sync replica should lead instead, because the disk here fails or lags."""
        return self._hand_over() if self.role is Role.LEADER else []

    def _hand_over(self) -> list[Instruction]:
        if self.role is Role.STEPPING_DOWN:
            return []
        self.role = Role.STEPPING_DOWN
        return [HandOver(self.epoch)]

    def handed_over(self, epoch: int) -> list[Instruction]:
        """Report that in-sync replicas had their moment."""
        is_present = self.role is Role.STEPPING_DOWN and epoch == self.epoch
        return [ReleaseLease(epoch), EndLeadership(epoch)] if is_present else []

    def leadership_ended(self, epoch: int) -> list[Instruction]:
        """Report that the lease is lost for good, or another master is registered."""
        return [EndLeadership(epoch)] if self.is_leading and epoch == self.epoch else []

    def stepped_down(self, epoch: int) -> list[Instruction]:
        """Report the end of a leadership."""
        if self.is_leading and epoch == self.epoch:
            if self.role is Role.STEPPING_DOWN:
                self._left_epoch = epoch
            self.role = Role.FOLLOWER
        return [] if self.role is Role.STOPPED else [BecomeFollower()]

    def stop(self) -> list[Instruction]:
        """End its part in the group."""
        instructions: list[Instruction] = [EndLeadership(self.epoch, is_stop=True)] if self.is_leading else []
        self.role = Role.STOPPED
        return [*instructions, *self._disconnect(), LeaveRoutes()]
