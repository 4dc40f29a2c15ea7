"""Hold what the parts of a broker share: its disk, its stream, and its leadership."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raymq.actors.broker.replication.ack_rule import AckRule
from raymq.actors.broker.replication.in_sync_set import InSyncSet
from raymq.actors.broker.replication.reconciliation import StreamExtent
from raymq.actors.broker.replication.replica_role import ReplicaRole
from raymq.actors.broker.replication.replication_receiver import ReplicationReceiver
from raymq.actors.broker.replication.replication_sender import ReplicationSender
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import LeaseClaim, Registered
from raymq.actors.keeper.master_lease import MasterLease
from tests.unit.actors.replication.model.disk import BrokerDisk
from tests.unit.actors.replication.model.network import Line
from tests.unit.actors.replication.model.virtual_time import Process, Signal

if TYPE_CHECKING:
    from tests.unit.actors.replication.model.world import World

GROUP = "broker-a"
SLAVE_TIMEOUT_SECONDS = 3.0
#: The number of events behind a snapshot that lead to the next one.
COMPACTED_EVENTS = 12


class InSyncWithBugs(InSyncSet):
    """Behave like the real in-sync set, except for deliberate bugs."""

    bugs: frozenset[str] = frozenset()

    @property
    def required(self) -> frozenset[int]:
        if self.proposed is not None:
            if "grow the set before the answer" in self.bugs and self.proposed > self.members:
                return self.members
            if "shrink the set before the answer" in self.bugs and self.proposed < self.members:
                return self.proposed
        return super().required

    def _has_caught_up(self, replica: int, now: float) -> bool:
        if "take in who lags" in self.bugs:
            return self._peers[replica].has is not None
        return super()._has_caught_up(replica, now)

    def acknowledged(self, replica: int, connection: int, position: StreamPosition) -> bool:
        if "believe old connections" in self.bugs and (peer := self._peers.get(replica)) is not None:
            peer.connection = connection
            peer.has = peer.has.join(position) if peer.has else position
            return self._confirm()
        return super().acknowledged(replica, connection, position)


class Leadership:
    """Hold a broker's leadership in one epoch."""

    def __init__(self, node: BrokerParts, registered: Registered) -> None:
        assert isinstance(registered.value, GroupState)
        self.node = node
        self.registered = registered
        self.state = registered.value
        self.epoch = self.state.epoch
        self.claim = LeaseClaim(node.number, node.nonce, self.epoch)
        self.lease = MasterLease(node.process.clock)
        kind = type("Set", (InSyncWithBugs,), {"bugs": node.bugs})
        self.in_sync: InSyncSet = kind(
            node.number, self.state.in_sync, node.end, node.process.clock, confirmed=node.confirmed
        )
        self.rule = AckRule(self.state.policy, self.in_sync, self.lease, node.number)
        self.changed = Signal()
        self.connections: dict[Line, ReplicationSender] = {}
        self.is_over = self.is_stepping_down = False
        #: Whether a call is running that may change the known registered state; one runs at a time.
        self.is_changing = False

    def wake(self) -> None:
        changed, self.changed = self.changed, Signal()
        changed.set()

    def leave(self) -> None:
        self.is_over = True
        self.lease.revoke()
        for line in self.connections:
            line.close()
        self.wake()


class BrokerParts:
    """Hold one process of a broker, in any role."""

    def __init__(self, world: World, number: int, process: Process, disk: BrokerDisk, nonce: str) -> None:
        self.world, self.number, self.process, self.disk, self.nonce = world, number, process, disk, nonce
        self.bugs = world.bugs
        self.register = world.register(process)
        self.journal, extent = disk.recover()
        self.confirmed = BEGIN
        self.leadership: Leadership | None = None
        self.follower: ReplicationReceiver | None = None
        self.line: Line | None = None
        self.received_at = 0.0
        self.read_at = 0.0
        self.role = ReplicaRole(number, nonce, disk.fenced, process.clock)
        self.connection_count = 0
        self.end = extent.end
        #: Tables of an arriving snapshot, used once the snapshot is complete.
        self.tables = (0, 0)

    @property
    def extent(self) -> StreamExtent:
        return StreamExtent(self.disk.epochs, StreamPosition(0, self.journal.snapshot), self.end)

    def is_valid(self, leadership: Leadership) -> bool:
        return self.leadership is leadership

    def step_down(self) -> None:
        leadership, self.leadership = self.leadership, None
        if leadership is not None:
            self.confirmed = self.confirmed.join(leadership.in_sync.confirmed)
            leadership.leave()

    @property
    def is_connected(self) -> bool:
        return self.line is not None and self.line.is_open and self.process.clock() - self.received_at < 1.5

    def disconnect(self) -> None:
        if self.line is not None:
            self.line.close()
        self.line = self.follower = None

    def compact(self, confirmed: StreamPosition) -> None:
        if len(self.journal) < COMPACTED_EVENTS:
            return
        feeders = self.leadership.connections.values() if self.leadership is not None else ()
        needed = [each.needs_state_from for each in feeders]
        bound = min(confirmed.sequence, self.journal.last, *(each for each in needed if each is not None))
        bound = max(bound, self.journal.snapshot)
        if "compact what is not confirmed" in self.bugs:
            bound, confirmed = self.journal.last, self.end
        compacted = self.journal.compact(bound, confirmed)
        if compacted:
            self.disk.tables = (bound, int.from_bytes(compacted[-1].payload, "big"))
            self.disk.events = list(self.journal.after(bound))
            self.disk.synced_events = max(0, self.disk.synced_events - len(compacted))

    def cut(self, position: StreamPosition, epoch: int) -> None:
        """Truncate log, state and epochs durably."""
        disk = self.disk
        if "cut in memory only" in self.bugs:
            self.world.revive(self, bytes(disk.log[position.offset :]), position.offset)
        del disk.log[position.offset :]
        disk.synced_log = min(disk.synced_log, len(disk.log))
        if "cut without the state" not in self.bugs:
            self.journal.cut(position.sequence)
            disk.events = list(self.journal.after(self.journal.snapshot))
            disk.synced_events = min(disk.synced_events, len(disk.events))
        disk.epochs.cut(epoch)
        self.end = StreamPosition(len(disk.log), self.journal.last)
        disk.epochs.clamp(self.end)
