"""Test that a register restored from a backup loses nothing acknowledged.

The restored register holds the master and the in-sync set of the time of the backup.
"""

from __future__ import annotations

import random

import pytest

from tests.unit.actors.replication.model.exploring import FAULTS
from tests.unit.actors.replication.model.world import World


def explore(seed: int, *, steps: int = 25) -> None:
    """Run random faults; now and then heal them, wait, and restore the register."""
    chance = random.Random(seed)
    mode = chance.choice(("sync", "sync", "async"))
    world = World(seed, mode=mode, min_in_sync=chance.choice((1, 2)), flush_sync=chance.random() < 0.4)
    world.run(2.0)
    for _ in range(steps):
        if chance.random() < 0.15 and world.registered:
            world.heal()
            world.run(chance.choice((4.0, 5.0, 7.0, 12.0)))
            world.restore_register(chance.choice(world.registered[-6:]))
            world.run(12.0)
        else:
            FAULTS[chance.choice(sorted(FAULTS))](world, chance)
            world.run(chance.choice((0.05, 0.3, 0.3, 1.0, 2.0)))
    world.recover()
    world.check_end()


@pytest.mark.parametrize("seed", range(12))
def test_history_with_restored_register_recovers(seed: int) -> None:
    explore(seed)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_many_histories_with_restored_register_recover() -> None:
    for seed in range(1_000, 4_000):
        explore(seed)
