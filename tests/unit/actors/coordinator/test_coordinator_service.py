"""Test coordinators over sockets, with real keepers and with replicas that have no stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from raymq.actors.coordinator.service import CoordinatorService
from raymq.actors.keeper.group_state import GroupState, ReplicationPolicy
from raymq.actors.protocol import CoordinatorSpec
from raymq.storage.clock import boottime
from tests.unit.actors.coordinator.fake_replicas import FakeReplica
from tests.unit.actors.keeper.served_keepers import ServedKeepers, served_keepers

GROUP = "broker-a"


class Group:
    """Hold a group's replicas and the coordinators that watch the group."""

    def __init__(self, keepers: ServedKeepers, count: int) -> None:
        self.keepers = keepers
        self.register = keepers.register()
        self.replicas = {number: FakeReplica(keepers.register(), GROUP, number) for number in range(1, count + 1)}
        self.coordinators: list[CoordinatorService] = []
        #: (epoch, replica) of each master that was seen to serve.
        self.seen: set[tuple[int, int]] = set()

    async def coordinate(self) -> CoordinatorService:
        spec = CoordinatorSpec("c", self.keepers.keepers.to_json(), (GROUP,), "sync", 1)
        self.coordinators.append(await CoordinatorService.start(spec))
        return self.coordinators[-1]

    @property
    def master(self) -> FakeReplica | None:
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
async def running_group(folder: Path, count: int = 3) -> AsyncIterator[Group]:
    async with served_keepers(folder) as keepers:
        group = Group(keepers, count)
        try:
            yield group
        finally:
            for coordinator in group.coordinators:
                await coordinator.stop()
            for replica in group.replicas.values():
                await replica.kill()


async def test_group_elects_new_master_after_master_death(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
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


async def test_two_coordinators_elect_one_master_per_epoch(tmp_path: Path) -> None:
    """Check that concurrent coordinators create one master per epoch and depose each once."""
    async with running_group(tmp_path) as group:
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


async def test_coordinator_restart_keeps_serving_master(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
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


async def test_coordinator_reports_why_group_has_no_master(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        coordinator = await group.coordinate()
        await group.until(lambda: "no replica has started yet" in coordinator.troubles.get(GROUP, ""))
        await group.replicas[2].start()
        await group.replicas[1].start()
        await group.until(lambda: group.master is group.replicas[1])
        await group.until(lambda: len(group.replicas[2].state.replicas if group.replicas[2].state else ()) == 2)
        await group.replicas[1].kill()
        await group.until(lambda: "in-sync replica [1]" in coordinator.troubles.get(GROUP, ""))
        assert coordinator.status()["groups"] == [GROUP]


async def test_replica_fenced_by_aborted_election_follows_again(tmp_path: Path) -> None:
    """Cover an operator's election that stopped halfway.

    No replica was elected, and no later election could succeed either.
    """
    async with running_group(tmp_path) as group:
        await group.coordinate()
        for replica in group.replicas.values():
            await replica.start()
        await group.until(lambda: group.master is group.replicas[1])
        await group.replicas[1].take_in(2)
        group.replicas[3].fenced = 2
        await group.until(lambda: group.master is not None and group.master.epoch == 2)
        assert (await group.state()).replicas.keys() == {1, 2, 3}


async def test_set_groups_adds_and_drops_watched_groups(tmp_path: Path) -> None:
    async with running_group(tmp_path, 1) as group:
        coordinator = await group.coordinate()
        coordinator.set_groups(["broker-b"], ReplicationPolicy("sync", 1))
        await group.until(lambda: "no replica has started yet" in coordinator.troubles.get("broker-b", ""))
        assert (coordinator.status()["groups"], coordinator.troubles.get(GROUP)) == (["broker-b"], None)
        assert isinstance((await group.register.read("broker-b")).value, GroupState)
        coordinator.set_groups([GROUP, "broker-b"], ReplicationPolicy("sync", 1))
        await group.replicas[1].start()
        await group.until(lambda: group.master is not None)
        assert coordinator.status()["groups"] == [GROUP, "broker-b"]
