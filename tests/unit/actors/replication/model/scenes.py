"""Provide scripted histories that random runs reach too rarely; each passes without bugs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from raymq.actors.keeper.group_state import GroupState
from raymq.actors.keeper.keeper_record import Slot
from tests.unit.actors.replication.model.broker_node import BrokerNode
from tests.unit.actors.replication.model.broker_parts import GROUP
from tests.unit.actors.replication.model.disk import numbers
from tests.unit.actors.replication.model.world import KEEPERS, Violated, World

Scene = Callable[[Collection[str]], None]


def until(world: World, holds: Callable[[], bool], seconds: float = 20.0, step: float = 0.05) -> None:
    until = world.scheduler.now + seconds
    while not holds():
        assert world.scheduler.now < until, "the scene does not come about"
        world.run(step)


def master_of(world: World) -> BrokerNode | None:
    found = [
        node
        for node in world.brokers.values()
        if node.process.is_alive and node.leadership is not None and node.leadership.lease.holds
    ]
    return found[0] if len(found) == 1 else None


def start_synced_pair(bugs: Collection[str], *, mode: str = "sync") -> tuple[World, BrokerNode, BrokerNode]:
    """Start two brokers in sync, the master first, without a client."""
    world = World(7, bugs, replicas=2, mode=mode)
    world.client.kill()
    until(world, lambda: (node := master_of(world)) is not None and len(node.leadership.in_sync.members) == 2)  # type: ignore[union-attr]
    master = master_of(world)
    assert master is not None
    return world, master, world.brokers[3 - master.number]


def cut_off(world: World, node: BrokerNode) -> None:
    world.partition({node.process.name})


def write(node: BrokerNode, *messages: int) -> None:
    for message in messages:
        node.process.spawn(node.write(message, None))


def _slots(world: World) -> list[Slot]:
    return [world.keepers[number].acceptor.record.slots[GROUP] for number in KEEPERS]  # type: ignore[union-attr]


def check_former_master_stays_truncated(bugs: Collection[str]) -> None:
    """Truncate a former master, restart and elect it: log and state stay truncated."""
    world, former, other = start_synced_pair(bugs, mode="async")
    write(former, 1, 2)
    world.run(1.0)
    cut_off(world, former)
    write(former, 101, 102, 103, 104, 105, 106)
    former.process.spawn(former.write(None, 1))
    former.process.spawn(former.write(None, 2))
    until(world, lambda: master_of(world) is other)
    write(other, 3, 4)
    world.network.cut.clear()
    until(world, lambda: other.leadership is not None and len(other.leadership.in_sync.members) == 2)
    if world.disks[former.number].progress() != world.disks[other.number].progress():
        raise Violated("I7: what was cut is still in the state")
    for node in (other, former):
        world.kill(node.number)
    world.start(former.number)
    until(world, lambda: master_of(world) is world.brokers[former.number])
    world.run(1.0)
    world.start(other.number)
    world.recover()
    world.check_end()
    revived = [number for number in numbers(world.disks[former.number].log) if number > 100]
    if revived:
        raise Violated(f"what was cut has come to life: {revived}")


def check_set_grown_unknown_to_master(bugs: Collection[str]) -> None:
    """Lose the keepers' answers after they admitted a replica, which may then be elected."""
    world, master, other = start_synced_pair(bugs)
    world.kill(other.number)
    leadership = master.leadership
    assert leadership is not None
    until(world, lambda: leadership.in_sync.members == {master.number} and leadership.in_sync.proposed is None)
    world.start(other.number)
    until(world, lambda: leadership.in_sync.proposed is not None, step=0.0005)

    def has_grown() -> bool:
        slots = _slots(world)
        grown = [
            each for each in slots if isinstance(each.entry.value, GroupState) and len(each.entry.value.in_sync) == 2
        ]
        return len(grown) >= 2

    until(world, has_grown, step=0.0005)
    world.network.cut |= {(f"k{number}", master.process.name) for number in KEEPERS}
    names = master.process.name, f"b{other.number}"
    world.network.cut |= {names, names[::-1]}
    write(master, 1, 2, 3)
    world.run(1.0)
    world.kill(master.number)
    world.network.cut.clear()
    world.run(10.0)
    world.recover_silently()


def check_shrink_lost_before_register(bugs: Collection[str]) -> None:
    """Cut the master from its replica and, as it shrinks the set, from the keepers."""
    world, master, other = start_synced_pair(bugs)
    me, others = master.process.name, f"b{other.number}"
    world.network.cut |= {(me, others), (others, me)}
    leadership = master.leadership
    assert leadership is not None
    until(world, lambda: leadership.in_sync.proposed is not None, step=0.0005)
    for number in KEEPERS:
        world.network.cut |= {(me, f"k{number}"), (f"k{number}", me)}
    for keeper in world.keepers.values():  # Requests on their way to the keepers are lost, too.
        keeper.is_deaf = True
    write(master, 1, 2, 3)
    world.run(0.5)
    world.kill(master.number)
    for keeper in world.keepers.values():
        keeper.is_deaf = False
    world.network.cut.clear()
    world.run(10.0)
    world.recover_silently()


SCENES: Final[dict[str, Scene]] = {
    "cut in memory only": check_former_master_stays_truncated,
    "cut without the state": check_former_master_stays_truncated,
    "shrink the set before the answer": check_shrink_lost_before_register,
    "grow the set before the answer": check_set_grown_unknown_to_master,
}
