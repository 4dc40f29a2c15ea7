"""A broker as master: what it takes, whom it ships it to, and its lease."""

from __future__ import annotations

from typing import Any

from raymq.actors.broker.replication.acknowledging import NOT_MASTER, AckOutcome
from raymq.actors.broker.replication.claims import connection_refusal
from raymq.actors.broker.replication.feeding import Feeder, ShipLog
from raymq.actors.broker.replication.frame_bodies import read_hello
from raymq.actors.broker.replication.frames import FrameKind, ReplicationFrame, ReplicationReader
from raymq.actors.broker.replication.positions import BEGIN, StreamPosition
from raymq.actors.broker.replication.reconciling import GoOn, TakeSnapshot
from raymq.actors.errors import ProtocolError
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.messages import Registered
from raymq.storage.errors import StoreError
from tests.unit.actors.replication.model.broker_parts import GROUP, SLAVE_TIMEOUT_SECONDS, BrokerParts, Office
from tests.unit.actors.replication.model.disk import RECORD_BYTES, numbers, record
from tests.unit.actors.replication.model.network import Line


class MasterPart(BrokerParts):
    """What a broker does while it has an office."""

    async def send(self, number: int) -> str:
        """What becomes of a message: "ok", "refused" (not stored), "repeat", or "unknown"."""
        return await self.write(number, None)

    async def commit(self, progress: int) -> str:
        return await self.write(None, progress)

    async def read(self, since: int) -> list[int] | None:
        """The messages from a queue offset on that may be seen; None: not the master."""
        office = self.office
        if office is None or not office.lease.holds:
            return None
        seen = self.end if "show what is not confirmed" in self.bugs else office.in_sync.confirmed
        self.world.check_seen(self, bytes(self.disk.log[: seen.offset]))
        return numbers(self.disk.log[: seen.offset])[since:]

    async def write(self, number: int | None, progress: int | None) -> str:
        office = self.office
        if office is None or self.disk.fails:
            return "refused"
        refusal = office.rule.refusal()
        if refusal is not None and not (self._trusts_its_lease() and refusal == NOT_MASTER):
            return "refused"
        if number is not None:
            if number in numbers(self.disk.log):
                return "repeat"
            self.disk.log += record(number)
        if progress is not None:
            if progress <= self.disk.progress():
                return "repeat"
            self.disk.frames.append(self.states.make(progress.to_bytes(8, "big"), len(self.disk.log)))
        self.end = end = StreamPosition(len(self.disk.log), self.states.last)
        office.in_sync.appended(end, office.in_sync.acknowledged_by(self.number) or BEGIN)
        self.pump()
        if self.world.flush_sync:
            await self.process.pause(self.world.chance.choice((0.001, 0.01)))
            try:
                self.disk.sync()
            except StoreError:
                return "unknown"
        if not self.is_valid(office):
            return "unknown"
        office.in_sync.appended(self.end, end)
        office.wake()
        return await self._answer(office, number, progress, end)

    async def _answer(self, office: Office, number: int | None, progress: int | None, end: StreamPosition) -> str:
        until = self.process.clock() + SLAVE_TIMEOUT_SECONDS
        while (outcome := self._outcome(office, end)) is AckOutcome.WAIT and self.process.clock() < until:
            await self.process.within(office.changed, 0.2)
        if outcome is not AckOutcome.SAFE:
            return "unknown"
        self.world.acknowledged(self, office, number, progress, end)
        return "ok"

    def _outcome(self, office: Office, end: StreamPosition) -> AckOutcome:
        looks_no_more = self._trusts_its_lease() or "look at the lease before the wait only" in self.bugs
        if looks_no_more or "ignore min_in_sync at the end" in self.bugs:
            is_sync = office.state.policy.mode == "sync"
            has = office.in_sync.confirmed if is_sync else office.in_sync.acknowledged_by(self.number)
            if not looks_no_more and not office.lease.holds:
                return AckOutcome.UNKNOWN
            return AckOutcome.SAFE if has is not None and has.covers(end) else AckOutcome.WAIT
        return office.rule.outcome(end)

    def _trusts_its_lease(self) -> bool:
        return "skip the lease check" in self.bugs

    async def renew(self, office: Office) -> None:
        while self.is_valid(office):
            began = office.lease.ask()
            try:
                seconds = await self.register.renew(GROUP, office.claim)
            except RegisterConflict:
                if not office.lease.holds:
                    self.leave_office()
                    return
            except RegisterError:
                pass
            else:
                if self.is_valid(office):
                    if "count the lease from its answer" in self.bugs:
                        office.lease.given(self.process.clock(), seconds / 0.8)
                    else:
                        office.lease.given(began, seconds)
            await self.process.pause(0.4)

    async def look_after(self, office: Office) -> None:
        turn = 0
        while self.is_valid(office):
            wanted = office.in_sync.wanted()
            if wanted is not None and len(wanted) >= 1 and office.lease.holds:
                self.process.spawn(self.change_set(office, wanted))
            for line, feeder in list(office.connections.items()):
                if not line.is_open:
                    office.connections.pop(line)
                elif feeder.position is not None and turn % 3 == 0:
                    line.send(feeder.heartbeat().encode(), by_source=False)
            if turn % 10 == 0:
                self.fold(office.in_sync.confirmed)
            turn += 1
            await self.process.pause(0.1)

    async def change_set(self, office: Office, wanted: frozenset[int]) -> None:
        if office.is_changing:
            return
        office.is_changing = True
        office.in_sync.propose(wanted)
        asked = office.registered
        assert isinstance(asked.value, GroupState)
        try:
            now = await self.register.change(GROUP, asked, asked.value.with_set(wanted))
        except RegisterUnknown:
            now = await self._asked(office, settle="take unknown for not done" not in self.bugs)
        except RegisterConflict:
            now = await self._asked(office, settle=False)
        except RegisterError:
            now = asked
        office.is_changing = False
        self.take_registered(office, now)

    def take_registered(self, office: Office, now: Registered) -> None:
        if not self.is_valid(office):
            return
        state = now.value
        assert isinstance(state, GroupState)
        if (state.master, state.epoch) != (self.number, office.epoch):
            self.leave_office()
            return
        office.registered = now
        nonces = {number: record.nonce for number, record in state.replicas.items()}
        office.in_sync.decided(state.in_sync, nonces)
        for line, feeder in office.connections.items():
            if feeder.hello is not None and feeder.hello.nonce != nonces.get(feeder.hello.replica):
                line.close()
        office.wake()

    async def learn(self, office: Office) -> None:
        """Know of replicas that have started since."""
        if office.is_changing:
            return
        office.is_changing = True
        now = await self._asked(office, settle=False)
        office.is_changing = False
        self.take_registered(office, now)

    async def _asked(self, office: Office, *, settle: bool) -> Registered:
        while self.is_valid(office):
            try:
                return await (self.register.settle(GROUP) if settle else self.register.read(GROUP))
            except RegisterError:
                await self.process.pause(0.2)
        return office.registered

    def accept(self, line: Line) -> Any:
        reader = ReplicationReader()
        self.connection_count += 1
        connection = self.connection_count
        office = self.office

        def receive(content: bytes) -> None:
            if office is None or not self.is_valid(office):
                line.close()
                return
            try:
                for frame in reader.feed(content):
                    self._hear(office, line, connection, frame)
            except ProtocolError:
                line.close()

        return receive

    def _hear(self, office: Office, line: Line, connection: int, frame: ReplicationFrame) -> None:
        if frame.epoch != office.epoch:
            raise ProtocolError("of another epoch")
        if frame.kind is FrameKind.ACK:
            feeder = office.connections.get(line)
            if feeder is not None and feeder.hello is not None:
                office.in_sync.acknowledged(feeder.hello.replica, connection, frame.position)
                office.wake()
            return
        hello = read_hello(frame.body)
        known = office.registered.value
        assert isinstance(known, GroupState)
        refusal = connection_refusal(known, hello.replica, hello.identity, hello.nonce)
        if refusal is not None:
            refused = ReplicationFrame(FrameKind.REFUSED, office.epoch, body=refusal.encode())
            line.send(refused.encode(), by_source=False)
            self.process.spawn(self.learn(office))
            raise ProtocolError(refusal)
        feeder = office.connections.setdefault(
            line, Feeder(office.epoch, lambda: self.extent, self.states.after, lambda: office.in_sync.confirmed)
        )
        verdict, answer = feeder.welcome(hello, frame.position)
        line.send(answer.encode(), by_source=False)
        if isinstance(verdict, GoOn):
            office.in_sync.connected(hello.replica, connection, verdict.position, hello.nonce)
            self.pump()
        elif isinstance(verdict, TakeSnapshot):
            tables = self.disk.folded[1].to_bytes(8, "big")
            for kind, body in ((FrameKind.TABLES, tables), (FrameKind.SNAPSHOT_END, b"")):
                line.send(ReplicationFrame(kind, office.epoch, body=body).encode(), by_source=False)

    def pump(self) -> None:
        """Ship what there is."""
        office = self.office
        if office is None:
            return
        for line, feeder in office.connections.items():
            try:
                while line.is_open and (shipment := feeder.next_shipment(5 * RECORD_BYTES)) is not None:
                    log = b""
                    if isinstance(shipment, ShipLog):
                        log = bytes(self.disk.log[shipment.start : shipment.end])
                    line.send(feeder.frame_of(shipment, log).encode(), by_source=False)
            except ProtocolError:
                line.close()
