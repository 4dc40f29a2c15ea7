"""Who may go on arriving: what has arrived counts, one at a time has the turn, nobody waits for ever."""

from __future__ import annotations

import random

from raymq.actors.wire.request_memory_budget import RequestMemoryBudget
from tests.unit.actors.clock import FakeClock

MIB = 1 << 20


def test_what_is_announced_costs_nothing() -> None:
    """Fault 13.21: 33 connections of 8 bytes that announce 16 MiB each stopped everybody else."""
    room = RequestMemoryBudget(512 * MIB, FakeClock())
    assert all(room.arriving(n, 8, 8, 16 * MIB) for n in range(1000))
    assert room.arriving_bytes == 8000
    assert room.arriving("honest", MIB // 4, MIB, MIB)
    room.validate()


def test_one_of_those_that_wait_has_the_turn_and_loses_it_if_it_is_slow() -> None:
    clock = FakeClock()
    room = RequestMemoryBudget(10, clock)
    assert room.arriving("a", 5, 5, 100)
    assert room.arriving("b", 4, 8, 8), "no room for it, but nobody has the turn"
    assert not room.arriving("a", 5, 6, 100)
    assert room.arriving("b", 8, 8, 8)
    room.ended("b")
    assert room.arriving("a", 5, 20, 100)
    assert room.late() is None
    clock.now += 1.1
    assert room.late() == "a"
    room.end_turn()
    assert room.late() is None
    room.validate()


def test_the_turn_is_not_given_where_requests_under_way_leave_no_room_for_the_whole() -> None:
    room = RequestMemoryBudget(10, FakeClock())
    room.hold(8)
    assert not room.arriving("a", 1, 4, 5)
    room.release_memory(8)
    assert room.arriving("a", 1, 50, 50), "one alone may always"


def test_all_frames_arrive_in_the_end_and_memory_stays_bounded() -> None:
    rng = random.Random(5)
    room = RequestMemoryBudget(100, FakeClock())
    frames = {n: [0, 0, rng.randint(1, 60)] for n in range(50)}
    for _ in range(10_000):
        if not frames:
            break
        who = rng.choice(sorted(frames))
        arrived, memory, length = frames[who]
        frames[who][0] = arrived = rng.randint(arrived, memory)
        if arrived == length:
            room.ended(who)
            del frames[who]
            continue
        needs = max(memory, min(length, 4 * arrived, arrived + 10) or 1)
        if room.arriving(who, memory, needs, length):
            frames[who][1] = needs
        assert room.arriving_bytes <= 100 + 60
        room.validate()
    assert not frames
    assert not room.arriving_bytes
