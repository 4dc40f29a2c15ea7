"""Run keepers and a stateless coordinator around the real state machines."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raymq.actors.broker.replication.election import FencedState, NoWinner, Winner
from raymq.actors.coordinator.failover_monitor import FailoverMonitor, FenceReplicas, Idle, StepDown
from raymq.actors.keeper.acceptor import Acceptor
from raymq.actors.keeper.errors import RegisterError
from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_messages import AcceptedBallot, Answer, KeeperCall, KeeperRefused, Reason
from raymq.actors.keeper.keeper_set import KeeperSet
from raymq.actors.keeper.proposal import Answers
from raymq.actors.wire.commands.replication_commands import ReplicaStatus
from tests.unit.actors.replication.model.broker_parts import GROUP
from tests.unit.actors.replication.model.virtual_time import Process, Signal, gather_signals

if TYPE_CHECKING:
    from tests.unit.actors.replication.model.world import World


class KeeperNode:
    """Run one process of a keeper."""

    def __init__(self, world: World, acceptor: Acceptor) -> None:
        self._world = world
        self.acceptor = acceptor
        #: Whether the keeper refuses every call.
        self.is_deaf = False

    async def handle(self, call: KeeperCall) -> Answer:
        if self.is_deaf:
            return KeeperRefused(Reason.FAILED)
        answer = self.acceptor.handle(call)
        if isinstance(answer, AcceptedBallot) and not self._world.clocks_are_wrong:
            self._world.check_leases()
        return answer


def acceptor_with(bugs: Collection[str]) -> type[Acceptor]:
    """Return the real acceptor class, changed by deliberate bugs."""

    class FaultyAcceptor(Acceptor):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            if "keepers forget leases" in bugs:
                self.leases._quiet_until = 0.0
            if "keepers ignore leases" in bugs:
                self.leases.held_against = lambda *_: 0.0  # type: ignore[method-assign]

    return FaultyAcceptor


class ModelTransport:
    """Carry calls from one process to the keepers."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    async def ask(
        self, keepers: KeeperSet, asked: Mapping[int, KeeperCall], is_enough: Callable[[Answers], bool]
    ) -> Answers:
        answers: dict[int, Answer] = {}
        enough = Signal()
        is_over = False

        def heard(number: int, answered: Signal) -> None:
            if not is_over:
                answers[number] = answered.value
                if is_enough(answers):
                    enough.set()

        for number, call in asked.items():
            answered = self._world.network.request(self._process, keepers.all_members[number].address, "handle", call)
            answered.then(lambda number=number, answered=answered: heard(number, answered))  # type: ignore[misc]
        await self._process.within(enough, 0.5)
        is_over = True
        return dict(answers)

    async def pause(self, seconds: float) -> None:
        await self._process.pause(seconds)


class MonitorWithBugs(FailoverMonitor):
    """Behave like the real failover monitor, except for deliberate bugs."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        super().__init__(GROUP, clock)
        self._world = world
        self.heartbeats: dict[int, dict[str, Any]] = {}

    def choose_master(self, state: GroupState, fenced: Mapping[int, FencedState]) -> Winner | NoWinner:
        bugs = self._world.bugs
        if "elect by heartbeat" in bugs:
            fenced = {
                number: _replaced(each, end=self.heartbeats[number]["end"], epoch=self.heartbeats[number]["epoch"])
                for number, each in fenced.items()
                if number in self.heartbeats
            }
            members = [each for number, each in fenced.items() if number in state.in_sync]
            if not members:
                return NoWinner("nobody")
            best = max(members, key=lambda each: (each.epoch, each.end))
            equal = [each.replica for each in members if each.end == best.end]
            return Winner(best.replica, frozenset(equal))
        if "elect the longest of all" in bugs and len(fenced) >= 2:
            best = max(fenced.values(), key=lambda each: each.end)
            return Winner(best.replica, frozenset({best.replica}))
        if "elect by length before epoch" in bugs:
            fenced = {number: _replaced(each, epoch=1) for number, each in fenced.items()}
        if "trust a lost tail" in bugs:
            fenced = {number: _replaced(each, tail_lost=False) for number, each in fenced.items()}
        return super().choose_master(state, fenced)


class CoordinatorNode:
    """Carry out the steps of `FailoverMonitor`, as `CoordinatorService` does."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._register = world.register(process)
        self._monitor = MonitorWithBugs(world, process.clock)
        process.spawn(self.run())

    async def run(self) -> None:
        while True:
            with contextlib.suppress(RegisterError):
                await self._turn()
            await self._process.pause(0.3)

    async def _turn(self) -> None:
        now = await self._register.read(GROUP)
        while True:
            state = now.value
            assert isinstance(state, GroupState)
            heard = await self._ask(state, "status", "")
            self._monitor.heartbeats.update(heard)
            step = self._monitor.next(state, {number: _status(number, each) for number, each in heard.items()})
            if isinstance(step, FenceReplicas):
                fenced = {
                    number: each for number, each in (await self._ask(state, "seal", state.epoch)).items() if each
                }
                report = await self._ask(state, "status", "")
                step = self._monitor.elect(
                    state, fenced, {number: _status(number, each) for number, each in report.items()}
                )
            if isinstance(step, StepDown):
                assert state.master is not None
                asked = replace(state, replicas={state.master: state.replicas[state.master]})
                await self._ask(asked, "seal", state.epoch + 1)
                return
            if isinstance(step, Idle):
                return
            now = await self._register.change(GROUP, now, step.after)
            if step.after.master is not None:
                self._world.elections += 1
                self._world.warned |= "lost" in step.why

    async def _ask(self, state: GroupState, name: str, argument: Any) -> dict[int, Any]:
        asked = {
            number: self._world.network.request(self._process, record.address, name, argument)
            for number, record in state.replicas.items()
        }
        await gather_signals([self._process.within(each, 0.4) for each in asked.values()])
        return {number: each.value for number, each in asked.items() if each.is_done}


def _status(number: int, report: Mapping[str, Any]) -> ReplicaStatus:
    begin = (0, 0)
    return ReplicaStatus(
        replica=number,
        role="master" if report["serves"] else "replica",
        identity=report["identity"],
        nonce=report["nonce"],
        pid=0,
        serves=report["serves"],
        fenced=report["sealed"],
        epoch=report["epoch"],
        master=None,
        master_epoch=0,
        address="",
        replication_address="",
        begin=begin,
        end=report["end"],
        confirmed=begin,
        in_sync=(),
        set_epoch=0,
        reaches_keepers=report["reaches keepers"],
    )


def _replaced(state: FencedState, **changes: Any) -> FencedState:
    return dataclasses.replace(state, **changes)
