"""Test that a redrive of many or long dead letters runs in steps and copies each entry once."""

from __future__ import annotations

import pytest

from raymq.actors.errors import GroupNotFound
from raymq.actors.protocol import RedriveStatus
from raymq.client import Message
from raymq.storage.cooperative_steps import Steps, run_steps
from tests.unit.actors.bench import Bench

DONE, ALREADY, UNKNOWN = RedriveStatus.REDRIVEN, RedriveStatus.ALREADY, RedriveStatus.UNKNOWN
RETRY = "%RETRY%g"


def send_to_dlq(bench: Bench, count: int, body: bytes = b"x") -> list[int]:
    bench.core.ensure_group("g")
    for number in range(count):
        place = int(bench.append(Message("t", b"%d" % number + body)).physical_offsets[0])
        bench.core.redelivery.send_back("g", place, -1)
    return list(range(count))


def redrive_steps(bench: Bench, offsets: list[int], *, force: bool = False) -> Steps[list[RedriveStatus]]:
    return bench.core.dead_letters.redrive_steps("g", offsets, force=force, dry_run=False)


def measure_growth(bench: Bench, steps: Steps[list[RedriveStatus]]) -> tuple[list[int], list[RedriveStatus]]:
    """Run the steps; return the growth of the log in each step, and the result."""
    grown_by, end = [], bench.store.max_physical_offset
    while True:
        try:
            next(steps)
        except StopIteration as over:
            return [*grown_by, bench.store.max_physical_offset - end], over.value
        grown_by.append(bench.store.max_physical_offset - end)
        end = bench.store.max_physical_offset


def test_redrive_step_copies_limited_bytes(bench: Bench) -> None:
    """Guard against a step of 1.3 s and 760 MiB by sixty 4 MiB letters."""
    offsets = send_to_dlq(bench, 20, b"x" * 900_000)
    by_step, statuses = measure_growth(bench, redrive_steps(bench, offsets))
    assert statuses == [DONE] * 20
    assert max(by_step) < 5 << 20
    assert len(by_step) >= 5
    assert bench.bodies(RETRY) == [b"%d" % number + b"x" * 900_000 for number in range(20)]


def test_redrive_step_copies_limited_entries(bench: Bench) -> None:
    offsets = send_to_dlq(bench, 100)
    by_step, statuses = measure_growth(bench, redrive_steps(bench, offsets))
    assert statuses == [DONE] * 100
    assert len([each for each in by_step if each]) >= 4
    by_step, statuses = measure_growth(bench, redrive_steps(bench, offsets))
    assert statuses == [ALREADY] * 100
    assert len(by_step) >= 4


@pytest.mark.parametrize("ahead", range(4))
def test_concurrent_redrives_copy_each_entry_once(bench: Bench, ahead: int) -> None:
    offsets = send_to_dlq(bench, 100)
    first, second = redrive_steps(bench, offsets), redrive_steps(bench, offsets[::-1])
    statuses: dict[int, list[RedriveStatus]] = {}
    waiting = [(0, first), (1, second)]
    for _ in range(ahead):
        next(first, None)
    while waiting:
        number, steps = waiting.pop(0)
        try:
            next(steps)
        except StopIteration as over:
            statuses[number] = over.value
        else:
            waiting.append((number, steps))
    assert bench.store.max_offset(RETRY, 0) == 100
    assert all({*pair} == {DONE, ALREADY} for pair in zip(statuses[0], reversed(statuses[1]), strict=True))


def test_forced_redrive_copies_repeated_offset_once(bench: Bench) -> None:
    offsets = send_to_dlq(bench, 40)
    statuses = run_steps(
        bench.core.dead_letters.redrive_steps("g", [*offsets, *offsets, 99], force=True, dry_run=False)
    )
    assert statuses == [DONE] * 40 + [ALREADY] * 40 + [UNKNOWN]
    assert bench.store.max_offset(RETRY, 0) == 40


def test_redrive_recreates_deleted_retry_topic(bench: Bench) -> None:
    offsets = send_to_dlq(bench, 100)
    steps = redrive_steps(bench, offsets)
    next(steps)
    bench.core.topics.delete(RETRY)
    _, statuses = measure_growth(bench, steps)
    assert statuses == [DONE] * 100
    left = bench.store.max_offset(RETRY, 0)
    assert 0 < left < 100
    assert (
        run_steps(bench.core.dead_letters.redrive_steps("g", offsets[-left:], force=False, dry_run=False))
        == [ALREADY] * left
    )


def test_redrive_of_unknown_group_raises_group_not_found(bench: Bench) -> None:
    with pytest.raises(GroupNotFound):
        next(redrive_steps(bench, [0]))


def test_deleted_entry_is_not_redriven(bench: Bench) -> None:
    """Report an entry as unknown that was deleted before the redrive."""
    offsets = send_to_dlq(bench, 3)
    assert run_steps(bench.core.dead_letters.delete_steps("g", [1])) == 1
    assert run_steps(redrive_steps(bench, offsets, force=True)) == [DONE, UNKNOWN, DONE]
    assert bench.bodies(RETRY) == [b"0x", b"2x"]
