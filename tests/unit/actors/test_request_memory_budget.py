"""Test the memory budget of arriving requests: received bytes count, and each frame completes."""

from __future__ import annotations

import random

from raymq.actors.wire.request_memory_budget import RequestMemoryBudget
from tests.unit.actors.clock import FakeClock
from tests.validation import check_invariants

MIB = 1 << 20


def test_announced_bytes_cost_nothing() -> None:
    """Cover fault 13.21: 33 connections sent 8 bytes, announced 16 MiB and stopped all others."""
    budget = RequestMemoryBudget(512 * MIB, FakeClock())
    assert all(budget.arriving(n, 8, 8, 16 * MIB) for n in range(1000))
    assert budget.arriving_bytes == 8000
    assert budget.arriving("honest", MIB // 4, MIB, MIB)
    check_invariants(budget)


def test_one_frame_over_budget_has_turn_until_it_is_slow() -> None:
    clock = FakeClock()
    budget = RequestMemoryBudget(10, clock)
    assert budget.arriving("a", 5, 5, 100)
    assert budget.arriving("b", 4, 8, 8), "no room for it, but nobody has the turn"
    assert not budget.arriving("a", 5, 6, 100)
    assert budget.arriving("b", 8, 8, 8)
    budget.ended("b")
    assert budget.arriving("a", 5, 20, 100)
    assert budget.late() is None
    clock.now += 1.1
    assert budget.late() == "a"
    budget.end_turn()
    assert budget.late() is None
    check_invariants(budget)


def test_turn_requires_space_for_whole_frame() -> None:
    budget = RequestMemoryBudget(10, FakeClock())
    budget.hold(8)
    assert not budget.arriving("a", 1, 4, 5)
    budget.release_memory(8)
    assert budget.arriving("a", 1, 50, 50), "one alone may always"


def test_all_frames_complete_within_bounded_memory() -> None:
    rng = random.Random(5)
    budget = RequestMemoryBudget(100, FakeClock())
    frames = {n: [0, 0, rng.randint(1, 60)] for n in range(50)}
    for _ in range(10_000):
        if not frames:
            break
        frame_id = rng.choice(sorted(frames))
        arrived, memory, length = frames[frame_id]
        frames[frame_id][0] = arrived = rng.randint(arrived, memory)
        if arrived == length:
            budget.ended(frame_id)
            del frames[frame_id]
            continue
        needs = max(memory, min(length, 4 * arrived, arrived + 10) or 1)
        if budget.arriving(frame_id, memory, needs, length):
            frames[frame_id][1] = needs
        assert budget.arriving_bytes <= 100 + 60
        check_invariants(budget)
    assert not frames
    assert not budget.arriving_bytes
