"""Test replication under random faults, step by step with hypothesis and in long seeded histories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.unit.actors.replication.model.exploring import FAULTS, explore
from tests.unit.actors.replication.model.scenes import master_of, until
from tests.unit.actors.replication.model.world import World

#: The numbers of histories and of hypothesis examples that `make soak` runs.
SOAK_HISTORIES = 5_000
SOAK_EXAMPLES = 1_000


class Faults(RuleBasedStateMachine):
    """Apply faults in any order, then check recovery; `World` lists the invariants."""

    world: World | None = None

    @initialize(
        seed=st.integers(0, 1 << 32),
        mode=st.sampled_from(["sync", "async"]),
        min_in_sync=st.integers(1, 2),
        flush_sync=st.booleans(),
        replicas=st.integers(1, 3),
    )
    def begin(self, seed: int, mode: str, min_in_sync: int, replicas: int, *, flush_sync: bool) -> None:
        self.world = World(
            seed, mode=mode, min_in_sync=min(min_in_sync, replicas), flush_sync=flush_sync, replicas=replicas
        )
        self.world.run(1.5)

    @rule(name=st.sampled_from(sorted(FAULTS)), seconds=st.sampled_from([0.3, 0.02, 1.0, 2.0, 3.0]))
    def fault(self, name: str, seconds: float) -> None:
        assert self.world is not None
        if name != "cut_between_brokers" or len(self.world.disks) > 1:
            FAULTS[name](self.world, self.world.chance)
        self.world.run(seconds)

    def teardown(self) -> None:
        if self.world is not None:
            self.world.recover()
            self.world.check_end()


def run(examples: int, steps: int, **more: Any) -> None:
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        deadline=None,
        **more,
    )
    run_state_machine_as_test(Faults, settings=profile)


def test_invariants_hold_under_faults_in_any_order() -> None:
    run(12, 12, derandomize=True)


@pytest.mark.parametrize("seed", range(15))
def test_long_random_history_recovers(seed: int) -> None:
    explore(seed)


def test_failover_completes_within_5_seconds() -> None:
    """Allow 5 virtual seconds for lease expiry, detection, and answers of keepers and replicas."""
    for seed in range(6):
        world = World(seed, flush_sync=False)
        until(world, lambda world=world: len(world.acked) >= 3)  # type: ignore[misc]
        former = master_of(world)
        assert former is not None
        world.kill(former.number)
        until(world, lambda world=world: master_of(world) is not None, seconds=5.0)  # type: ignore[misc]
        world.recover()
        world.check_end()


def test_same_seed_gives_same_history() -> None:
    first, second = explore(3), explore(3)
    assert first.acked == second.acked
    assert first.history == second.history
    assert first.elections == second.elections
    assert first.elections > 0
    assert len(first.history) > 0


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_many_random_histories_recover() -> None:
    for seed in range(1_000, 1_000 + SOAK_HISTORIES):
        explore(seed, steps=40)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_invariants_hold_under_many_orders_of_faults() -> None:
    run(SOAK_EXAMPLES, 40)
