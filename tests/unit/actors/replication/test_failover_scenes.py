"""Test failover scenes of a whole cluster in virtual time."""

from __future__ import annotations

import pytest

from tests.unit.actors.replication.model.disk import numbers
from tests.unit.actors.replication.model.exploring import explore
from tests.unit.actors.replication.model.scenes import (
    check_former_master_stays_truncated,
    cut_off,
    master_of,
    start_synced_pair,
    until,
    write,
)


def test_truncated_messages_stay_gone_after_restart() -> None:
    check_former_master_stays_truncated(())


def test_restarted_master_keeps_tail_and_reuses_no_offset() -> None:
    world, master, other = start_synced_pair(())
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


def test_coordinator_cut_from_master_starts_no_election() -> None:
    world, master, _ = start_synced_pair(())
    elections = world.elections
    world.network.cut |= {(master.process.name, "coordinator")}
    for message in range(1, 20):
        write(master, message)
        world.run(0.5)
        assert master_of(world) is master
    assert world.elections == elections
    assert len(world.acked) >= 18


def test_master_cut_from_keepers_is_replaced() -> None:
    world, master, other = start_synced_pair(())
    world.network.cut |= {(f"k{number}", master.process.name) for number in world.keepers}
    until(world, lambda: master_of(world) is other)
    write(master, 1)
    write(other, 2)
    # The former master cannot read the register and follows no master, so it has to leave the set first.
    until(world, lambda: [number for number, _ in world.acked] == [2])
    world.recover_silently()


@pytest.mark.parametrize("seed", range(4))
def test_retries_across_failovers_store_no_duplicates(seed: int) -> None:
    """Rely on `World.check_end` to find duplicates; the client resends unanswered messages."""
    world = explore(
        seed, faults=("kill", "start", "cut_off", "mend", "lose_messages"), mode="sync", min_in_sync=1, flush_sync=False
    )
    assert world.elections > 1


def test_master_stopped_beyond_lease_acknowledges_nothing() -> None:
    world, master, other = start_synced_pair(())
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


def test_master_with_frozen_clock_acknowledges_nothing() -> None:
    world, master, other = start_synced_pair(())
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
