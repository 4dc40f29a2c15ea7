"""Run a broker node around the real state machines, on a simulated disk and network."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from raymq.actors.broker.replica.replica_claimer import end_predecessor_lease
from raymq.actors.broker.replication.election import FencedState, first_entry
from raymq.actors.broker.replication.replica_claims import ClaimRefused, ReplicaClaim, apply_claim, make_nonce
from raymq.actors.broker.replication.replica_role import (
    ApplyRegistered,
    BeginLeadership,
    Connect,
    Disconnect,
    EndLeadership,
    HandOver,
    Instruction,
    MarkComplete,
    ReleaseLease,
    Role,
    StoreFence,
)
from raymq.actors.errors import BrokerUnavailable, InvalidInput
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from raymq.actors.keeper.keeper_messages import NOTHING, LeaseClaim, Registered
from raymq.actors.keeper.master_lease import claim_of
from tests.unit.actors.replication.model.disk import RECORD_BYTES, BrokerDisk
from tests.unit.actors.replication.model.virtual_time import Process

if TYPE_CHECKING:
    from tests.unit.actors.replication.model.world import World

from tests.unit.actors.replication.model.broker_parts import GROUP, Leadership
from tests.unit.actors.replication.model.master_part import MasterPart
from tests.unit.actors.replication.model.replica_part import ReplicaPart


class BrokerNode(MasterPart, ReplicaPart):
    """Run one process of a broker."""

    def __init__(self, world: World, number: int, process: Process, disk: BrokerDisk, drawn: str, place: str) -> None:
        """Hold the lock at `place`; the process that held the lock before is dead."""
        super().__init__(world, number, process, disk, make_nonce(drawn, place))
        self.place = place
        self.registered = NOTHING
        process.spawn(self.end_predecessor_lease())
        process.spawn(self.run())

    async def end_predecessor_lease(self) -> None:
        if "end another one's lease" in self.bugs:
            with contextlib.suppress(RegisterError):
                claim = claim_of((await self.register.read(GROUP)).value)
                if claim is not None:
                    await self.register.release(GROUP, claim)
        else:
            await end_predecessor_lease(self.register, GROUP, self.number, self.place)

    async def status(self, nonce: str) -> dict[str, Any]:
        """Answer the coordinator, or another claimant of the directory."""
        leadership = self.leadership
        return {
            "nonce": self.nonce,
            "serves": leadership is not None and leadership.lease.holds and not self.disk.fails,
            "reaches keepers": self.process.clock() - self.read_at < 1.0,
            "epoch": self.extent.epoch,
            "end": self.end,
            "identity": self.disk.identity,
            "sealed": self.disk.fenced,
            "asked": nonce,
        }

    async def seal(self, epoch: int) -> FencedState | None:
        if "elect without sealing" not in self.bugs:
            try:
                self.execute(self.role.fence(epoch))
            except (BrokerUnavailable, InvalidInput):
                return None
        if self.role.is_leading and self.role.epoch < epoch:
            return None  # it steps down, and is asked again
        return FencedState(
            self.number,
            self.disk.identity,
            self.nonce,
            epoch,
            self.extent.epoch,
            self.end,
            tail_lost=self.disk.tail_lost,
            healthy=not self.disk.fails,
            reaches_keepers=self.process.clock() - self.read_at < 1.0,
        )

    async def run(self) -> None:
        if not await self.claim():
            return
        while True:
            try:
                registered = await self.register.read(GROUP)
            except RegisterError:
                pass
            else:
                self.read_at = self.process.clock()
                if not self.take_role(registered):
                    return
            await self.process.pause(0.3)

    async def claim(self) -> bool:
        """Register this process as the process of its replica."""
        before = list(self.disk.nonces)
        self.disk.nonces.append(self.nonce)
        while True:
            try:
                now = await self.register.settle(GROUP)
                assert isinstance(now.value, GroupState)
                if "go on after a restart" in self.bugs and now.value.master == self.number:
                    after = now.value.with_replica(self.number, self._record())
                else:
                    answers = await self._registered_answers(now.value)
                    made = ReplicaClaim(self.number, self._record(), before, tail_lost=self.disk.tail_lost)
                    after = apply_claim(now.value, made, registered_answers=answers)
                if after != now.value:
                    await self.register.change(GROUP, now, after)
                self.disk.nonces = [self.nonce]
                self.role.claimed()
            except ClaimRefused as refused:
                self.role.claim_refused(str(refused))
                return False
            except RegisterError:
                await self.process.pause(0.2)
            else:
                return True

    def _record(self) -> ReplicaRecord:
        return ReplicaRecord(self.disk.identity, self.process.name, self.nonce)

    async def _registered_answers(self, state: GroupState) -> bool:
        known = state.replicas.get(self.number)
        if known is None or known.address == self.process.name:
            return False
        answered = self.world.network.request(self.process, known.address, "status", known.nonce)
        await self.process.within(answered, 0.5)
        return answered.is_done and answered.value["nonce"] == known.nonce

    def take_role(self, registered: Registered) -> bool:
        """Apply the registered state; return whether this process still owns the replica."""
        state, role = registered.value, self.role
        assert isinstance(state, GroupState)
        self.registered = registered
        if self.leadership is None and role.role is Role.PROMOTING:
            has_others = bool(state.in_sync - {self.number})
            self.execute(role.promotion_failed(role.epoch, has_others=has_others))
        elif self.leadership is None:
            self.execute(role.leadership_ended(role.epoch))
        if not self.is_connected:
            self.execute(role.connection_lost())
        while role.role is not Role.REFUSED:
            log_epoch = 0 if "go on after a restart" in self.bugs else self.disk.epochs.last_epoch
            found = role.register_read(state, log_epoch=log_epoch, is_following=self.follower is not None)
            self.execute(found)
            if not any(isinstance(each, Disconnect | EndLeadership) for each in found):
                break
        return role.role is not Role.REFUSED

    def execute(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            self.execute(self.do(instruction))

    def do(self, instruction: Instruction) -> list[Instruction]:
        leadership, registered = self.leadership, self.registered
        match instruction:
            case Connect(master, epoch):
                assert isinstance(registered.value, GroupState)
                self.follow(registered.value.replicas[master], epoch)
                return self.role.connected(epoch)
            case Disconnect():
                self.disconnect()
                return self.role.disconnected(is_broken=False)
            case BeginLeadership():
                self.become_master(registered)
            case EndLeadership(epoch):
                self.step_down()
                return self.role.stepped_down(epoch)
            case HandOver(epoch):
                self.process.spawn(self.hand_over(epoch))
            case ReleaseLease(epoch):
                self.process.spawn(self.register.release(GROUP, LeaseClaim(self.number, self.nonce, epoch)))
            case StoreFence(epoch):
                self.disk.fenced = epoch
            case MarkComplete():
                self.disk.tail_lost = False
            case ApplyRegistered() if leadership is not None and not leadership.is_changing:
                if registered.version > leadership.registered.version:
                    self.apply_registered(leadership, registered)
                elif registered != leadership.registered:
                    self.process.spawn(self.learn(leadership))
        return []

    async def hand_over(self, epoch: int) -> None:
        if self.leadership is not None:
            self.leadership.is_stepping_down = True
            await self.process.pause(self.world.chance.choice((0.01, 0.2)))
        self.execute(self.role.handed_over(epoch))

    def become_master(self, registered: Registered) -> None:
        assert isinstance(registered.value, GroupState)
        epoch = registered.value.epoch
        self.disk.fenced = epoch
        self.disk.tail_lost = False
        if "cut the tail of the new master" in self.bugs:
            self.cut(self.confirmed, self.disk.epochs.last_epoch)
        whole = self.end.offset - self.end.offset % RECORD_BYTES
        if whole != self.end.offset:
            self.cut(self.end._replace(offset=whole), self.disk.epochs.last_epoch)
        self.disk.epochs.clamp(self.end)
        if epoch > self.disk.epochs.last_epoch:
            self.disk.epochs.append(first_entry(self.disk.epochs, epoch, self.extent.begin, self.end))
        self.confirmed = self.confirmed.meet(self.end)
        self.leadership = Leadership(self, registered)
        self.process.spawn(self.renew(self.leadership))
        self.process.spawn(self.maintain_leadership(self.leadership))
