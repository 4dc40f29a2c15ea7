"""Coordinators over sockets: keepers that listen, and replicas that answer; only the stores are not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from raymq.actors.coordinator.service import CoordinatorService
from raymq.actors.keeper.group_state import GroupState, ReplicationPolicy
from raymq.actors.protocol import CoordinatorSpec
from raymq.storage.clock import boottime
from tests.unit.actors.coordinator.replicas_at_hand import ReplicaAtHand
from tests.unit.actors.keeper.served_keepers import ServedKeepers, served_keepers

GROUP = "broker-a"


class Group:
    """A group's replicas, and the coordinators that watch it."""

    def __init__(self, keepers: ServedKeepers, count: int) -> None:
        self.keepers = keepers
        self.register = keepers.register()
        self.replicas = {number: ReplicaAtHand(keepers.register(), GROUP, number) for number in range(1, count + 1)}
        self.coordinators: list[CoordinatorService] = []
        #: (epoch, replica) of whoever was seen to serve.
        self.seen: set[tuple[int, int]] = set()

    async def coordinate(self) -> CoordinatorService:
        spec = CoordinatorSpec("c", self.keepers.keepers.to_json(), (GROUP,), "sync", 1)
        self.coordinators.append(await CoordinatorService.start(spec))
        return self.coordinators[-1]

    @property
    def master(self) -> ReplicaAtHand | None:
        serving = [each for each in self.replicas.values() if each.serves]
        self.seen |= {(each.epoch, each.number) for each in serving}
        assert len(serving) <= 1
        return serving[0] if serving else None

    async def state(self) -> GroupState:
        value = (await self.register.read(GROUP)).value
        assert isinstance(value, GroupState)
        return value

    async def until(self, holds: Callable[[], bool], seconds: float = 20.0) -> None:
        deadline = boottime() + seconds
        while not holds():
            assert boottime() < deadline, [each.troubles for each in self.coordinators]
            await asyncio.sleep(0.02)


@asynccontextmanager
async def grouped(folder: Path, count: int = 3) -> AsyncIterator[Group]:
    async with served_keepers(folder) as keepers:
        group = Group(keepers, count)
        try:
            yield group
        finally:
            for coordinator in group.coordinators:
                await coordinator.stop()
            for replica in group.replicas.values():
                await replica.kill()


async def test_a_group_is_founded_gets_a_master_and_after_its_death_another_one(tmp_path: Path) -> None:
    async with grouped(tmp_path) as group:
        coordinator = await group.coordinate()
        for replica in group.replicas.values():
            await replica.start()
        await group.until(lambda: group.master is group.replicas[1])
        state = await group.state()
        assert (state.epoch, state.policy.mode, state.in_sync) == (1, "sync", {1})
        await group.replicas[1].take_in(2, 3)
        group.replicas[3].end = 70
        await group.replicas[1].kill()
        await group.until(lambda: group.master is group.replicas[3], 10.0)
        state = await group.state()
        assert (state.master, state.epoch, state.in_sync) == (3, 2, {3})
        await group.until(lambda: coordinator.troubles == {})
        assert coordinator.elections == 2
        await group.replicas[1].start()
        await group.until(lambda: group.replicas[1].state is not None)
        assert group.master is group.replicas[3]


async def test_two_coordinators_at_once_are_harmless(tmp_path: Path) -> None:
    """One of two changes of the register is refused; no two masters are in one epoch, and nobody is deposed twice."""
    async with grouped(tmp_path) as group:
        await asyncio.gather(*(group.coordinate() for _ in range(2)))
        for replica in group.replicas.values():
            await replica.start()
        await group.until(lambda: group.master is not None)
        for _ in range(2):
            master = group.master
            assert master is not None
            await master.take_in(*group.replicas)
            await master.kill()
            await group.until(lambda gone=master: group.master not in {None, gone})  # type: ignore[misc]
            await master.start()
        epochs = [epoch for epoch, _ in group.seen]
        assert len(set(epochs)) == len(epochs)
        assert (await group.state()).epoch == max(epochs)
        assert sum(each.elections for each in group.coordinators) == (await group.state()).epoch


async def test_a_coordinator_that_is_started_anew_takes_nothing_from_a_master_that_serves(tmp_path: Path) -> None:
    async with grouped(tmp_path, 2) as group:
        first = await group.coordinate()
        for replica in group.replicas.values():
            await replica.start()
        await group.until(lambda: group.master is not None)
        master = group.master
        assert master is not None
        await first.stop()
        second = await group.coordinate()
        await group.until(lambda: second.troubles == {})
        assert group.master is master
        await master.take_in(1, 2)
        await master.kill()
        await group.until(lambda: group.master is not None)
        assert second.elections == 1


async def test_what_is_in_the_way_of_a_master_is_said(tmp_path: Path) -> None:
    async with grouped(tmp_path, 2) as group:
        coordinator = await group.coordinate()
        await group.until(lambda: "no replica has started yet" in coordinator.troubles.get(GROUP, ""))
        await group.replicas[2].start()
        await group.replicas[1].start()
        await group.until(lambda: group.master is group.replicas[1])
        await group.until(lambda: len(group.replicas[2].state.replicas if group.replicas[2].state else ()) == 2)
        await group.replicas[1].kill()
        await group.until(lambda: "in sync [1]" in coordinator.troubles.get(GROUP, ""))
        assert coordinator.status()["groups"] == [GROUP]


async def test_a_replica_that_is_sealed_to_an_election_that_never_was_follows_again(tmp_path: Path) -> None:
    """As by an operator's election that ended in the middle: nobody elected, nor would another one have done so."""
    async with grouped(tmp_path) as group:
        await group.coordinate()
        for replica in group.replicas.values():
            await replica.start()
        await group.until(lambda: group.master is group.replicas[1])
        await group.replicas[1].take_in(2)
        group.replicas[3].fenced = 2
        await group.until(lambda: group.master is not None and group.master.epoch == 2)
        assert (await group.state()).replicas.keys() == {1, 2, 3}


async def test_groups_that_come_are_looked_after_and_those_that_go_are_not(tmp_path: Path) -> None:
    async with grouped(tmp_path, 1) as group:
        coordinator = await group.coordinate()
        coordinator.set_groups(["broker-b"], ReplicationPolicy("sync", 1))
        await group.until(lambda: "no replica has started yet" in coordinator.troubles.get("broker-b", ""))
        assert (coordinator.status()["groups"], coordinator.troubles.get(GROUP)) == (["broker-b"], None)
        assert isinstance((await group.register.read("broker-b")).value, GroupState)
        coordinator.set_groups([GROUP, "broker-b"], ReplicationPolicy("sync", 1))
        await group.replicas[1].start()
        await group.until(lambda: group.master is not None)
        assert coordinator.status()["groups"] == [GROUP, "broker-b"]
