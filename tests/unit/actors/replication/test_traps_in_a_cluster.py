"""The traps that need a whole cluster to be told, each as a short scene in virtual time."""

from __future__ import annotations

import pytest

from tests.unit.actors.replication.model.disk import numbers
from tests.unit.actors.replication.model.exploring import explore
from tests.unit.actors.replication.model.scenes import (
    a_former_masters_tail_is_cut_for_good,
    cut_off,
    master_of,
    settled,
    until,
    write,
)


def test_trap_1_what_was_cut_does_not_revive_with_a_restart() -> None:
    a_former_masters_tail_is_cut_for_good(())


def test_trap_2_a_restarted_master_keeps_its_tail_and_uses_no_offset_twice() -> None:
    world, master, other = settled(())
    world.network.cut |= {(master.process.name, other.process.name), (other.process.name, master.process.name)}
    write(master, 1, 2, 3)
    world.run(0.3)
    before = bytes(world.disks[master.number].log)
    assert numbers(before) == [1, 2, 3]
    world.kill(master.number)
    world.start(master.number)
    until(world, lambda: master_of(world) is not None)
    world.network.cut.clear()
    world.recover_silently()
    for disk in world.disks.values():
        assert bytes(disk.log[: len(before)]) == before, "its log was the longest of those in sync"


def test_trap_14_a_coordinator_that_does_not_hear_the_master_takes_nothing_from_it() -> None:
    world, master, _ = settled(())
    elections = world.elections
    world.network.cut |= {(master.process.name, "coordinator")}
    for message in range(1, 20):
        write(master, message)
        world.run(0.5)
        assert master_of(world) is master
    assert world.elections == elections
    assert len(world.acked) >= 18


def test_trap_14_a_master_that_reaches_no_keeper_is_succeeded_though_the_coordinator_hears_it() -> None:
    world, master, other = settled(())
    world.network.cut |= {(f"k{number}", master.process.name) for number in world.keepers}
    until(world, lambda: master_of(world) is other)
    write(master, 1)
    write(other, 2)
    # The former master, which reads no register either, does not know whom to follow, and has to leave the set first.
    until(world, lambda: [number for number, _ in world.acked] == [2])
    world.recover_silently()


@pytest.mark.parametrize("seed", range(4))
def test_trap_25_retries_across_changes_of_the_master_store_nothing_twice(seed: int) -> None:
    """`World.check_end` looks for messages that lie there twice; the client sends again what it has no answer for."""
    world = explore(
        seed, faults=("kill", "start", "cut_off", "mend", "lose_messages"), mode="sync", min_in_sync=1, flush_sync=False
    )
    assert world.elections > 1


def test_trap_30_a_master_that_was_stopped_for_longer_than_its_lease_acknowledges_nothing_when_it_goes_on() -> None:
    world, master, other = settled(())
    write(master, 1)
    world.run(0.0015)
    world.stop(master.number)
    until(world, lambda: master_of(world) is other)
    write(other, 2)
    world.run(1.0)
    assert [number for number, _ in world.acked] == [2]
    world.go_on(master.number)
    world.run(2.0)
    assert [number for number, _ in world.acked] == [2]
    world.recover_silently()


def test_a_master_whose_clock_stands_still_acknowledges_nothing_that_its_successor_lacks() -> None:
    world, master, other = settled(())
    world.clocks_are_wrong = True
    master.process.stop_clock()
    cut_off(world, master)
    until(world, lambda: other.leadership is not None)
    assert master.leadership is not None
    assert master.leadership.lease.holds, "it believes so"
    write(master, 1, 2)
    write(other, 3)
    world.run(5.0)
    assert 1 not in [number for number, _ in world.acked]
    world.recover_silently()
    assert numbers(world.disks[master.number].log) == numbers(world.disks[other.number].log)
