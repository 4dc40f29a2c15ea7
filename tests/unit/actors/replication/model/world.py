"""Simulate brokers, keepers, a coordinator and a client in virtual time, with faults and invariants.

The invariants of replication, and where they are checked:
    I1  a message acknowledged with sync is in the log in the end                                   `check_end`
    I2  a message with an unknown outcome may be stored; I3 a refused message is nowhere            `check_end`
    I4  acknowledged messages lie in the order in which they were sent                              `check_end`
    I5  the message at a visible offset never changes                                               `check_seen`
    I7  acknowledged progress never goes back, and never refers to a missing message                `check_end`
    I11 one broker per epoch acknowledges, none in an epoch before one that has acknowledged        `acknowledged`
    I12 a flipped bit does not spread                                                               `check_seen`
    I13 after all faults a message is acknowledged, and all replicas are equal                      `recover`
    I14 events are compacted, not kept forever                                                      `check_end`
    Besides: with sync an acknowledged message lies on `min_in_sync` disks                          `acknowledged`
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from raymq.actors.broker.replication.replica_role import Role
from raymq.actors.broker.replication.stream_position import StreamPosition
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord, ReplicationPolicy
from raymq.actors.keeper.keeper_messages import Ballot, Registered
from raymq.actors.keeper.keeper_record import KeeperRecord, Slot
from raymq.actors.keeper.keeper_register import KeeperRegister
from raymq.actors.keeper.keeper_set import KeeperMember, KeeperSet
from raymq.actors.keeper.master_lease import claim_of
from tests.unit.actors.keeper.in_memory_keepers import MemoryFile
from tests.unit.actors.replication.model.broker_node import BrokerNode
from tests.unit.actors.replication.model.broker_parts import COMPACTED_EVENTS, GROUP, Leadership
from tests.unit.actors.replication.model.coordinator_node import (
    CoordinatorNode,
    KeeperNode,
    ModelTransport,
    acceptor_with,
)
from tests.unit.actors.replication.model.disk import RECORD_BYTES, BrokerDisk, numbers, record
from tests.unit.actors.replication.model.network import Network
from tests.unit.actors.replication.model.virtual_time import Process, Scheduler
from tests.validation import check_invariants

KEEPERS = (1, 2, 3)
#: How long a group may take to serve again once all faults are over, in seconds.
RECOVERY_SECONDS = 30.0
#: How long a replica may take to catch up once all faults are over, in seconds.
CATCH_UP_SECONDS = 10.0


class Violated(AssertionError):
    """Report an invariant that does not hold."""


class World:
    """Hold the whole simulation; all randomness comes from the seed."""

    def __init__(
        self,
        seed: int,
        bugs: Collection[str] = (),
        *,
        replicas: int = 3,
        mode: str = "sync",
        min_in_sync: int = 1,
        flush_sync: bool = False,
    ) -> None:
        self.scheduler = Scheduler(seed)
        self.chance = self.scheduler.chance
        self.network = Network(self.scheduler)
        self.bugs = frozenset(bugs)
        self.flush_sync = flush_sync
        self.policy = ReplicationPolicy(mode, min_in_sync)
        self.elections = 0
        #: Whether a replica was elected whose tail may be lost.
        self.warned = False
        #: Whether a clock may stand still: then guarantees that depend on leases do not hold, all others do.
        self.clocks_are_wrong = False
        #: Acknowledged messages with their end offsets, in order of acknowledgement; likewise the progress.
        self.acked: list[tuple[int, int]] = []
        self.acked_progress = 0
        self.refused: set[int] = set()
        self._masters: dict[int, str] = {}
        self._last_epoch = 0
        #: The confirmed log, on which all brokers agree.
        self.history = b""
        #: Former states of the register, for `restore_register`.
        self.registered: list[GroupState] = []
        self._tails: dict[int, tuple[int, bytes]] = {}
        self._starts = 0
        members = {number: KeeperMember(f"k{number}", f"made-{number}") for number in KEEPERS}
        self.keeper_set = KeeperSet(1, members)
        self.keepers: dict[int, KeeperNode] = {}
        self.keeper_files = {number: MemoryFile() for number in KEEPERS}
        first = {number: ReplicaRecord(f"dir-{number}", f"b{number}", "never") for number in range(1, replicas + 1)}
        state = GroupState(in_sync=frozenset(first), replicas=first, policy=self.policy)
        slot = Slot(Ballot(1, 1), moves=False, accepted=Ballot(1, 1), entry=Registered(1, "founded", state))
        for number in KEEPERS:
            founded = KeeperRecord("c", number, f"made-{number}", self.keeper_set, {GROUP: slot})
            self.keeper_files[number].save(founded)
            self.start_keeper(number)
        self.disks = {number: BrokerDisk(f"dir-{number}", nonces=["never"]) for number in first}
        self.brokers: dict[int, BrokerNode] = {}
        for number in first:
            self.start(number)
        self.start_coordinator()
        self.client = self._process("client")
        self._sent = 0
        self._known_master = 1
        self.client.spawn(self._send())
        self.client.spawn(self._consume())
        self.scheduler.after(0.25, self._inspect)

    def _process(self, name: str, speed: float = 1.0) -> Process:
        made = Process(self.scheduler, name, speed)
        self.network.processes[name] = made
        return made

    def register(self, process: Process) -> KeeperRegister:
        return KeeperRegister(self.keeper_set, ModelTransport(self, process), self.chance.randrange)

    # Starts, stops and faults of processes, disks and the network.

    def start(self, number: int) -> None:
        """Start a broker on the content of its disk."""
        self._starts += 1
        disk = self.disks[number]
        if (tail := self._tails.pop(number, None)) is not None and len(disk.log) < tail[0] + len(tail[1]):
            disk.log += tail[1][len(disk.log) - tail[0] :]
        if "forget the seal" in self.bugs:
            disk.fenced = 0
        process = self._process(f"b{number}", self.chance.choice((0.95, 1.0, 1.05)))
        node = BrokerNode(self, number, process, disk, f"start-{self._starts}", f"{number} {disk.boots}")
        self.brokers[number] = self.network.services[process.name] = node

    def kill(self, number: int) -> None:
        """Kill a broker as by SIGKILL; its writes are kept."""
        self.brokers[number].process.kill()

    def lose_power(self, number: int) -> None:
        """Drop unsynced writes of a broker, but never the last copy of confirmed ones."""
        self.kill(number)
        disk = self.disks[number]
        disk.boots += 1
        others = [each for key, each in self.disks.items() if key != number]
        keep = 0
        promised = max([len(self.history), *(end for _, end in self.acked)])
        for at in range(0, min(len(disk.log), promised), RECORD_BYTES):
            piece = disk.log[at : at + RECORD_BYTES]
            if not any(other.log[at : at + RECORD_BYTES] == piece for other in others):
                keep = at + RECORD_BYTES
        events = disk.synced_events
        if disk.events and all(other.progress() < disk.progress() for other in others):
            # The next start would drop an event whose log is missing.
            events, keep = len(disk.events), max(keep, disk.events[-1].log_offset)
        before = len(disk.log), len(disk.events)
        saved = disk.synced_events
        disk.synced_events = events
        disk.lose_power(self.chance, keep)
        disk.synced_events = min(saved, len(disk.events))
        if not self.flush_sync and before != (0, 0):
            disk.tail_lost = True

    def stop(self, number: int) -> None:
        self.brokers[number].process.stop()

    def go_on(self, number: int) -> None:
        self.brokers[number].process.go_on()

    def start_keeper(self, number: int) -> None:
        """Start a keeper on its file; a start at time 0 counts as just founded."""
        process = self._process(f"k{number}", self.chance.choice((0.95, 1.0, 1.05)))
        file = self.keeper_files[number]
        kind = acceptor_with(self.bugs)
        acceptor = kind(file.load(), file, process.clock, just_founded=self.scheduler.now == 0)
        self.keepers[number] = self.network.services[process.name] = KeeperNode(self, acceptor)

    def restore_register(self, older: GroupState) -> None:
        """Reset all keepers to an older state, as an etcd restored from a backup."""
        self.clocks_are_wrong = True  # the lease of the current master holds for a while
        records = []
        for number in KEEPERS:
            self.kill_keeper(number)
            record = self.keeper_files[number].load()
            assert record is not None
            records.append(record)
        slots = [each.slots[GROUP] for each in records]
        ballot = Ballot(1 + max(max(each.promised, each.accepted).round for each in slots), 1)
        now = max(slots, key=lambda each: each.accepted).entry.value
        assert isinstance(now, GroupState)
        entry = Registered(1, f"restored-{self.scheduler.now}", replace(older, replicas=now.replicas))
        for number, record in zip(KEEPERS, records, strict=True):
            slot = Slot(ballot, moves=False, accepted=ballot, entry=entry)
            self.keeper_files[number].save(record.with_slot(GROUP, slot))
            self.start_keeper(number)

    def kill_keeper(self, number: int) -> None:
        self.network.processes[f"k{number}"].kill()

    def start_coordinator(self) -> None:
        process = self._process("coordinator")
        self.network.services[process.name] = CoordinatorNode(self, process)

    def partition(self, side: Collection[str], *, one_way: bool = False) -> None:
        """Cut all traffic from this side to the others and, unless `one_way`, back."""
        for source in side:
            for target in self.network.processes.keys() - set(side):
                self.network.cut.add((source, target))
                if not one_way:
                    self.network.cut.add((target, source))

    def heal(self) -> None:
        """End all faults: all processes run, and all are reachable."""
        self.network.cut.clear()
        self.network.loss = self.network.flips = 0.0
        self.network.is_slow = False
        for number in self.disks:
            self.disks[number].fails = False
            process = self.brokers[number].process
            process.repair_clock()
            if process.is_stopped and process.is_alive:
                process.go_on()
            if not process.is_alive:
                self.start(number)
        for number in KEEPERS:
            if not self.network.processes[f"k{number}"].is_alive:
                self.start_keeper(number)

    def revive(self, node: BrokerNode, tail: bytes, at: int) -> None:
        """Record a cut made in memory only: the bytes are still in the file."""
        self._tails[node.number] = at, tail

    def run(self, seconds: float) -> None:
        self.scheduler.run(seconds)

    # The client.

    async def _send(self) -> None:
        while True:
            self._sent += 1
            outcomes = []
            for _ in range(self.chance.choice((1, 2, 3))):
                outcomes.append(await self._ask("send", self._sent))
                if outcomes[-1] == "ok":
                    break
            if set(outcomes) == {"refused"}:
                self.refused.add(self._sent)
            await self.client.pause(self.chance.choice((0.02, 0.1, 0.2)))

    async def _consume(self) -> None:
        seen = 0
        while True:
            found = await self._ask("read", seen)
            if isinstance(found, list) and found:
                seen += len(found)
                await self._ask("commit", seen)
            await self.client.pause(0.3)

    async def _ask(self, name: str, argument: int) -> object:
        answered = self.network.request(self.client, f"b{self._known_master}", name, argument)
        await self.client.within(answered, self.chance.choice((0.4, 1.0, 4.0)))
        if not answered.is_done or answered.value is None or answered.value == "refused":
            self._known_master = self.chance.choice(list(self.disks))
        return answered.value if answered.is_done else "unknown"

    # The invariants.

    def acknowledged(
        self, node: BrokerNode, leadership: Leadership, number: int | None, progress: int | None, end: StreamPosition
    ) -> None:
        """Check a broker that sends SEND_OK now."""
        who = f"{node.process.name} {node.nonce}"
        if self._masters.setdefault(leadership.epoch, who) != who:
            raise Violated(f"I11: {who} and {self._masters[leadership.epoch]} acknowledge in epoch {leadership.epoch}")
        if leadership.epoch < self._last_epoch:
            raise Violated(f"I11: {who} acknowledges in epoch {leadership.epoch}, after epoch {self._last_epoch} has")
        self._last_epoch = leadership.epoch
        if self.policy.mode != "sync":
            return
        if number is not None:
            at = end.offset - RECORD_BYTES
            holders = [key for key, disk in self.disks.items() if disk.log[at : end.offset] == record(number)]
            # A replica that acknowledged, and then lost unsynced data with its machine, counts as well.
            lost = [key for key, disk in self.disks.items() if disk.tail_lost and key not in holders]
            if len(holders) + len(lost) < self.policy.min_in_sync:
                raise Violated(f"message {number} is acknowledged and lies on {holders} only")
            if self.flush_sync and any(self.disks[key].synced_log < end.offset for key in leadership.in_sync.members):
                raise Violated(
                    f"message {number} is acknowledged and not on the disks of {set(leadership.in_sync.members)}"
                )
            self.acked.append((number, end.offset))
        if progress is not None:
            self.acked_progress = max(self.acked_progress, progress)

    def check_seen(self, node: BrokerNode, content: bytes) -> None:
        """Check the part of a broker's log that a consumer sees."""
        shared = min(len(content), len(self.history))
        if content[:shared] != self.history[:shared]:
            raise Violated(f"I5: {node.process.name} shows {numbers(content)}, and seen was {numbers(self.history)}")
        if len(content) > len(self.history):
            self.history = content

    def check_leases(self) -> None:
        """Check, after an accept, that no lease outlives its master in the register."""
        slots = [
            node.acceptor.record.slots[GROUP] for node in self.keepers.values() if node.acceptor.record is not None
        ]
        for slot in slots:
            if 2 * sum(each.accepted == slot.accepted for each in slots) <= len(slots):
                continue
            claim = claim_of(slot.entry.value)
            for node in self.brokers.values():
                leadership = node.leadership
                if (
                    leadership is not None
                    and leadership.lease.holds
                    and leadership.claim != claim
                    and node.process.is_alive
                ):
                    raise Violated(f"{leadership.claim} holds a lease, and the register says {claim}")

    def _inspect(self) -> None:
        for node in self.brokers.values():
            if node.process.is_alive and node.role.role is not Role.CANDIDATE:
                confirmed = node.leadership.in_sync.confirmed if node.leadership else node.confirmed
                self.check_seen(node, bytes(self.disks[node.number].log[: confirmed.offset]))
                if node.leadership is not None:
                    if not node.leadership.in_sync.bugs:
                        check_invariants(node.leadership.in_sync)
                    state = node.leadership.registered.value
                    if isinstance(state, GroupState) and state not in self.registered:
                        self.registered.append(state)
        self.scheduler.after(0.25, self._inspect)

    def recover_silently(self) -> None:
        """Recover and check the end state in a world without a client."""
        self.heal()
        self.run(15.0)
        self.check_end()

    def recover(self) -> float:
        """End all faults, and wait for recovery; return its duration in seconds."""
        self.heal()
        began = self.scheduler.now
        acked = len(self.acked)
        while self.scheduler.now - began < RECOVERY_SECONDS:
            self.run(0.5)
            masters = [
                each for each in self.brokers.values() if each.leadership is not None and each.leadership.lease.holds
            ]
            if len(masters) == 1 and masters[0].leadership is not None:
                leadership = masters[0].leadership
                has_new = len(self.acked) > acked or self.policy.mode != "sync"
                if has_new and leadership.in_sync.members >= self.disks.keys() and leadership.in_sync.proposed is None:
                    return self.scheduler.now - began
        raise Violated(f"I13: not well {RECOVERY_SECONDS} s after all faults: {self._describe()}")

    def check_end(self) -> None:
        """Check all guarantees after the faults, with the client stopped."""
        self.client.kill()
        began = self.scheduler.now
        self.run(3.0)
        # A replica may have to find out first that its connection is dead.
        while (
            len({bytes(disk.log) for disk in self.disks.values()}) > 1 and self.scheduler.now - began < CATCH_UP_SECONDS
        ):
            self.run(0.5)
        masters = [each for each in self.brokers.values() if each.leadership is not None]
        if len(masters) != 1:
            raise Violated(f"I11: masters in the end: {[each.number for each in masters]}")
        log = bytes(self.disks[masters[0].number].log)
        self.check_seen(masters[0], log)
        there = numbers(log)
        if len(set(there)) != len(there):
            raise Violated(f"a message lies there twice: {there}")
        if self.refused & set(there):
            raise Violated(f"I3: refused and stored: {sorted(self.refused & set(there))}")
        lost = [number for number, end in self.acked if log[end - RECORD_BYTES : end] != record(number)]
        if lost:
            raise Violated(f"I1: acknowledged and gone: {lost}")
        ends = [end for _, end in sorted(self.acked)]
        if sorted(ends) != ends:
            raise Violated("I4: acknowledged messages lie in another order than they were sent in")
        for number, disk in self.disks.items():
            if bytes(disk.log) != log:
                raise Violated(f"I13: b{number} has {numbers(disk.log)}, the master {there}")
            # A replica elected with a warning has the longest log, but not all of the state.
            if not (0 if self.warned else self.acked_progress) <= disk.progress() <= len(there):
                raise Violated(f"I7: b{number}: progress {disk.progress()}, acknowledged was {self.acked_progress}")
            if len(disk.events) > 2 * COMPACTED_EVENTS:
                raise Violated(f"I14: b{number} keeps {len(disk.events)} events")

    def _describe(self) -> str:
        parts = []
        for number, node in self.brokers.items():
            epochs = [(entry.epoch, entry.start.offset) for entry in node.disk.epochs][-3:]
            parts.append(
                f"b{number}: {node.end}, epochs {epochs}, sealed {node.disk.fenced}, refused {node.role.refusal}"
            )
            if (leadership := node.leadership) is not None:
                parts[-1] += f", office {leadership.epoch} {leadership.lease.holds} {set(leadership.in_sync.members)}"
                parts[-1] += f" {leadership.in_sync.confirmed}"
        slots = [KeeperRecord.decode(file.content).slots[GROUP] for file in self.keeper_files.values() if file.content]
        return "; ".join([*parts, *(f"{slot.promised[0]} {slot.accepted[0]} {slot.entry}" for slot in slots)])
