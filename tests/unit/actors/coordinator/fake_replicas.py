"""Provide replicas without stores, which claim, follow and answer the coordinator over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools

from raymq.actors.broker.replication.replica_claims import ReplicaClaim, apply_claim, founding_blocker
from raymq.actors.keeper.errors import RegisterConflict, RegisterError, RegisterUnknown
from raymq.actors.keeper.group_state import GroupState, ReplicaRecord
from raymq.actors.keeper.keeper_messages import LeaseClaim
from raymq.actors.keeper.master_lease import MasterLease
from raymq.actors.keeper.register import Register
from raymq.actors.wire.codes import RequestCode
from raymq.actors.wire.commands.replication_commands import (
    FenceReply,
    ReplicaStatus,
    fence_answer,
    read_fence,
    replica_status_answer,
)
from raymq.actors.wire.frame import Command
from raymq.actors.wire.server import Server, bind
from raymq.actors.wire.server_connection import ServerConnection
from raymq.storage.clock import boottime

_nonces = itertools.count(1)


class FakeReplica:
    """Run a replica without a store, process after process; `end` is its log length."""

    def __init__(self, register: Register, group: str, number: int) -> None:
        self._register, self._group, self.number = register, group, number
        with bind("127.0.0.1", 0, is_chosen=True) as bound:
            self._port = bound.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        self.identity, self.nonce = f"dir-{number}", ""
        self.end, self.epoch, self.fenced = 0, 0, 0
        self._nonces: list[str] = []
        self.lease: MasterLease | None = None
        self.state: GroupState | None = None
        self._server: Server | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.nonce = f"start-{next(_nonces)}"
        self._server = Server({RequestCode.SEAL: self._seal, RequestCode.REPLICA_STATUS: self._status})
        await self._server.start(bind("127.0.0.1", self._port))
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def kill(self) -> None:
        """Stop the replica without releasing its lease."""
        if self._running is not None and self._server is not None:
            self._running.cancel()
            self._running, self.lease = None, None
            await self._server.stop()

    @property
    def serves(self) -> bool:
        return self.lease is not None and self.lease.holds

    async def _run(self) -> None:
        await self._claim()
        while True:
            with contextlib.suppress(RegisterError):
                self.state = found = (await self._register.read(self._group)).value
                assert isinstance(found, GroupState)
                if found.master != self.number or found.epoch < self.fenced:
                    self.lease = None
                    if found.master is not None and self.number in found.in_sync:
                        self.epoch = found.epoch  # follows the master
                elif self.lease is not None or self.epoch < found.epoch:
                    self.lease = self.lease or MasterLease(boottime)
                    self.epoch = self.fenced = found.epoch
                    began = self.lease.ask()
                    claim = LeaseClaim(self.number, self.nonce, found.epoch)
                    self.lease.given(began, await self._register.renew(self._group, claim))
            await asyncio.sleep(0.1)

    async def _claim(self) -> None:
        while True:
            with contextlib.suppress(RegisterError):
                if (await self._register.read(self._group)).value is None:
                    await asyncio.sleep(0.05)  # settling now would conflict with the creation of the group
                    continue
                now = await self._register.settle(self._group)
                assert isinstance(now.value, GroupState)
                if founding_blocker(now.value, self.number) is None:
                    record = ReplicaRecord(self.identity, self.address, self.nonce)
                    claim = ReplicaClaim(self.number, record, self._nonces)
                    await self._register.change(
                        self._group, now, apply_claim(now.value, claim, registered_answers=False)
                    )
                    self._nonces = [self.nonce]
                    return
            await asyncio.sleep(0.05)

    async def take_in(self, *numbers: int) -> None:
        """Put these replicas into the in-sync set, as master."""
        while True:
            now = await self._register.read(self._group)
            assert isinstance(now.value, GroupState)
            if not now.value.replicas.keys() >= set(numbers):
                await asyncio.sleep(0.02)
                continue
            if now.value.in_sync == {self.number, *numbers}:
                return
            with contextlib.suppress(RegisterConflict, RegisterUnknown):
                await self._register.change(self._group, now, now.value.with_set({self.number, *numbers}))
                return

    def _seal(self, _: ServerConnection, request: Command) -> Command:
        epoch = read_fence(request)
        if epoch > self.fenced and self.lease is not None:
            self.lease = None
            claim = LeaseClaim(self.number, self.nonce, self.epoch)
            asyncio.get_running_loop().create_task(self._register.release(self._group, claim))
        self.fenced = max(self.fenced, epoch)
        answer = FenceReply(
            self.number, self.identity, self.nonce, self.fenced, self.epoch, (self.end, 0),
            tail_lost=False, healthy=True, priority=100, reaches_keepers=True,
        )  # fmt: skip
        return fence_answer(request, answer)

    def _status(self, _: ServerConnection, request: Command) -> Command:
        nothing = (0, 0)
        answer = ReplicaStatus(
            self.number, "master" if self.serves else "replica", self.identity, self.nonce, 1, self.serves,
            self.fenced, self.epoch, None, 0, self.address, "", nothing, (self.end, 0), nothing, (), 0,
            reaches_keepers=True,
        )  # fmt: skip
        return replica_status_answer(request, dataclasses.replace(answer))
