"""Run a broker as master: its appends, its shipping to replicas, and its lease."""

from __future__ import annotations

from typing import Any

from raymq.actors.broker.replication.ack_rule import NOT_MASTER, AckOutcome
from raymq.actors.broker.replication.frame_bodies import read_hello
from raymq.actors.broker.replication.reconciliation import ContinueFrom, InstallSnapshot
from raymq.actors.broker.replication.replica_claims import connection_refusal
from raymq.actors.broker.replication.replication_frames import FrameKind, ReplicationFrame
from raymq.actors.broker.replication.replication_sender import ReplicationSender
from raymq.actors.broker.replication.stream_position import BEGIN, StreamPosition
from raymq.actors.errors import ProtocolError
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import Registered
from raymq.storage.errors import StoreError
from tests.unit.actors.replication.model.broker_parts import GROUP, SLAVE_TIMEOUT_SECONDS, BrokerParts, Leadership
from tests.unit.actors.replication.model.disk import RECORD_BYTES, numbers, record
from tests.unit.actors.replication.model.network import Line
from tests.unit.actors.replication.replication_reader import ReplicationReader


class MasterPart(BrokerParts):
    """Do what a broker does as master."""

    async def send(self, number: int) -> str:
        """Send a message; return "ok", "refused" (not stored), "repeat" or "unknown"."""
        return await self.write(number, None)

    async def commit(self, progress: int) -> str:
        return await self.write(None, progress)

    async def read(self, since: int) -> list[int] | None:
        """Return the visible messages from a queue offset on, or None if not master."""
        leadership = self.leadership
        if leadership is None or not leadership.lease.holds:
            return None
        seen = self.end if "show what is not confirmed" in self.bugs else leadership.in_sync.confirmed
        self.world.check_seen(self, bytes(self.disk.log[: seen.offset]))
        return numbers(self.disk.log[: seen.offset])[since:]

    async def write(self, number: int | None, progress: int | None) -> str:
        leadership = self.leadership
        if leadership is None or leadership.is_stepping_down or self.disk.fails:
            return "refused"
        refusal = leadership.rule.refusal()
        if refusal is not None and not (self._trusts_its_lease() and refusal == NOT_MASTER):
            return "refused"
        if number is not None:
            if number in numbers(self.disk.log):
                return "repeat"
            self.disk.log += record(number)
        if progress is not None:
            if progress <= self.disk.progress():
                return "repeat"
            self.disk.events.append(self.journal.append(progress.to_bytes(8, "big"), len(self.disk.log)))
        self.end = end = StreamPosition(len(self.disk.log), self.journal.last)
        leadership.in_sync.appended(end, leadership.in_sync.acknowledged_by(self.number) or BEGIN)
        self.pump()
        if self.world.flush_sync:
            await self.process.pause(self.world.chance.choice((0.001, 0.01)))
            try:
                self.disk.sync()
            except StoreError:
                return "unknown"
        if not self.is_valid(leadership):
            return "unknown"
        leadership.in_sync.appended(self.end, end)
        leadership.wake()
        return await self._answer(leadership, number, progress, end)

    async def _answer(
        self, leadership: Leadership, number: int | None, progress: int | None, end: StreamPosition
    ) -> str:
        until = self.process.clock() + SLAVE_TIMEOUT_SECONDS
        while (outcome := self._outcome(leadership, end)) is AckOutcome.WAIT and self.process.clock() < until:
            await self.process.within(leadership.changed, 0.2)
        if outcome is not AckOutcome.SAFE:
            return "unknown"
        self.world.acknowledged(self, leadership, number, progress, end)
        return "ok"

    def _outcome(self, leadership: Leadership, end: StreamPosition) -> AckOutcome:
        looks_no_more = self._trusts_its_lease() or "look at the lease before the wait only" in self.bugs
        if looks_no_more or "ignore min_in_sync at the end" in self.bugs:
            is_sync = leadership.state.policy.mode == "sync"
            has = leadership.in_sync.confirmed if is_sync else leadership.in_sync.acknowledged_by(self.number)
            if not looks_no_more and not leadership.lease.holds:
                return AckOutcome.UNKNOWN
            return AckOutcome.SAFE if has is not None and has.covers(end) else AckOutcome.WAIT
        return leadership.rule.outcome(end)

    def _trusts_its_lease(self) -> bool:
        return "skip the lease check" in self.bugs

    async def renew(self, leadership: Leadership) -> None:
        while self.is_valid(leadership):
            began = leadership.lease.ask()
            try:
                seconds = await self.register.renew(GROUP, leadership.claim)
            except RegisterConflict:
                if not leadership.lease.holds:
                    self.step_down()
                    return
            except RegisterError:
                pass
            else:
                if self.is_valid(leadership):
                    if "count the lease from its answer" in self.bugs:
                        leadership.lease.given(self.process.clock(), seconds / 0.8)
                    else:
                        leadership.lease.given(began, seconds)
                    if self.role.lease_acquired(leadership.epoch):
                        self.role.serving(leadership.epoch)
            await self.process.pause(0.4)

    async def maintain_leadership(self, leadership: Leadership) -> None:
        turn = 0
        while self.is_valid(leadership):
            desired = leadership.in_sync.desired()
            if desired is not None and len(desired) >= 1 and leadership.lease.holds:
                self.process.spawn(self.change_set(leadership, desired))
            for line, feeder in list(leadership.connections.items()):
                if not line.is_open:
                    leadership.connections.pop(line)
                elif feeder.position is not None and turn % 3 == 0:
                    line.send(feeder.heartbeat().encode(), by_source=False)
            if turn % 10 == 0:
                self.compact(leadership.in_sync.confirmed)
            turn += 1
            await self.process.pause(0.1)

    async def change_set(self, leadership: Leadership, desired: frozenset[int]) -> None:
        if leadership.is_changing:
            return
        leadership.is_changing = True
        leadership.in_sync.propose(desired)
        expected = leadership.registered
        assert isinstance(expected.value, GroupState)
        try:
            now = await self.register.change(GROUP, expected, expected.value.with_set(desired))
        except RegisterUnknown:
            now = await self._read_register(leadership, settle="take unknown for not done" not in self.bugs)
        except RegisterConflict:
            now = await self._read_register(leadership, settle=False)
        except RegisterError:
            now = expected
        leadership.is_changing = False
        self.apply_registered(leadership, now)

    def apply_registered(self, leadership: Leadership, now: Registered) -> None:
        if not self.is_valid(leadership):
            return
        state = now.value
        assert isinstance(state, GroupState)
        if (state.master, state.epoch) != (self.number, leadership.epoch):
            self.step_down()
            return
        leadership.registered = now
        nonces = {number: record.nonce for number, record in state.replicas.items()}
        leadership.in_sync.committed(state.in_sync, nonces)
        for line, feeder in leadership.connections.items():
            if feeder.hello is not None and feeder.hello.nonce != nonces.get(feeder.hello.replica):
                line.close()
        leadership.wake()

    async def learn(self, leadership: Leadership) -> None:
        """Learn from the register which replicas have restarted."""
        if leadership.is_changing:
            return
        leadership.is_changing = True
        now = await self._read_register(leadership, settle=False)
        leadership.is_changing = False
        self.apply_registered(leadership, now)

    async def _read_register(self, leadership: Leadership, *, settle: bool) -> Registered:
        while self.is_valid(leadership):
            try:
                return await (self.register.settle(GROUP) if settle else self.register.read(GROUP))
            except RegisterError:
                await self.process.pause(0.2)
        return leadership.registered

    def accept(self, line: Line) -> Any:
        reader = ReplicationReader()
        self.connection_count += 1
        connection = self.connection_count
        leadership = self.leadership

        def receive(content: bytes) -> None:
            if leadership is None or not self.is_valid(leadership):
                line.close()
                return
            try:
                for frame in reader.feed(content):
                    self._receive_frame(leadership, line, connection, frame)
            except ProtocolError:
                line.close()

        return receive

    def _receive_frame(self, leadership: Leadership, line: Line, connection: int, frame: ReplicationFrame) -> None:
        if frame.epoch != leadership.epoch:
            raise ProtocolError("of another epoch")
        if frame.kind is FrameKind.ACK:
            feeder = leadership.connections.get(line)
            if feeder is not None and feeder.hello is not None:
                leadership.in_sync.acknowledged(feeder.hello.replica, connection, frame.position)
                leadership.wake()
            return
        hello = read_hello(frame.body)
        known = leadership.registered.value
        assert isinstance(known, GroupState)
        refusal = connection_refusal(known, hello.replica, hello.identity, hello.nonce)
        if refusal is not None:
            refused = ReplicationFrame(FrameKind.REFUSED, leadership.epoch, body=refusal.encode())
            line.send(refused.encode(), by_source=False)
            self.process.spawn(self.learn(leadership))
            raise ProtocolError(refusal)
        feeder = leadership.connections.setdefault(
            line,
            ReplicationSender(
                leadership.epoch, lambda: self.extent, self.journal.after, lambda: leadership.in_sync.confirmed
            ),
        )
        verdict, answer = feeder.on_hello(hello, frame.position)
        line.send(answer.encode(), by_source=False)
        if isinstance(verdict, ContinueFrom):
            leadership.in_sync.connected(hello.replica, connection, verdict.position, hello.nonce)
            self.pump()
        elif isinstance(verdict, InstallSnapshot):
            tables = self.disk.tables[1].to_bytes(8, "big")
            for kind, body in ((FrameKind.TABLES, tables), (FrameKind.SNAPSHOT_END, b"")):
                line.send(ReplicationFrame(kind, leadership.epoch, body=body).encode(), by_source=False)

    def pump(self) -> None:
        """Ship all pending log and state."""
        leadership = self.leadership
        if leadership is None:
            return
        for line, feeder in leadership.connections.items():
            try:
                while line.is_open and (
                    frame := feeder.next_frame(
                        self.extent.end, lambda begin, end: bytes(self.disk.log[begin:end]), 5 * RECORD_BYTES
                    )
                ):
                    line.send(frame.encode(), by_source=False)
            except ProtocolError:
                line.close()
