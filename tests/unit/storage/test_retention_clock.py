"""Test that a wrong clock expires no messages, and that old messages expire."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from raymq.storage.log import retention as retention_of
from raymq.storage.retention_clock import HELD_MS, RetentionClock
from raymq.storage.store import Store
from tests.store_records import EXPIRING, append, make_record

MINUTE, HOUR = 60_000, 3_600_000
START = 1_700_000_000_000


@dataclass
class Machine:
    """Fake a machine's two clocks in ms; `saved_ms` is what the last checkpoint since its boot has."""

    wall: int = START
    since_start: int = 5 * HOUR
    saved_ms: int | None = None

    def passes(self, ms: int) -> None:
        self.wall += ms
        self.since_start += ms

    def starts_again(self, ms: int) -> None:
        """Reboot after being off for so long, while the wall clock ran."""
        self.wall += ms
        self.since_start, self.saved_ms = 30_000, None

    def elapsed(self) -> float:
        return self.since_start / 1000

    def clock(self, newest_ms: int = 0) -> RetentionClock:
        return RetentionClock(lambda: self.wall, self.elapsed, newest_ms, self.saved_ms)

    def save(self, clock: RetentionClock) -> None:
        """Save the clock as a checkpoint does."""
        self.saved_ms = clock.boot_ms


@pytest.fixture
def machine() -> Machine:
    return Machine()


def clock_offsets(clock: RetentionClock, machine: Machine, steps: list[tuple[int, int]]) -> list[int]:
    """Return how far the clock is off the wall clock after each step.

    A step is (by how much the wall clock is set, how much time passes then).
    """
    off = []
    for jump, passes in steps:
        machine.wall += jump
        clock.now_ms()  # a store asks the clock every ten seconds
        machine.passes(passes)
        off.append(clock.now_ms() - machine.wall)
    return off


@pytest.mark.parametrize(
    ("steps", "off"),
    [
        ([(0, 1), (0, 30 * HOUR)], [0, 0]),
        # A second now and then is no step.
        ([(1000, MINUTE), (-2000, MINUTE), (30_000, 1)], [0, 0, 0]),
        # Four days ahead, and back again.
        ([(96 * HOUR, MINUTE), (-96 * HOUR, MINUTE)], [-96 * HOUR, 0]),
        # A step that lasts is accepted after an hour; the step back is accepted at once.
        ([(96 * HOUR, HELD_MS - 1), (0, 1), (0, HOUR), (-96 * HOUR, 0)], [-96 * HOUR, 0, 0, 0]),
        # Each further step starts a new hour.
        ([(2 * HOUR, HELD_MS - 1), (2 * HOUR, HELD_MS - 1), (0, 1)], [-2 * HOUR, -4 * HOUR, 0]),
        # After a step back, the return is a step ahead.
        ([(-HOUR, MINUTE), (HOUR, MINUTE)], [0, -HOUR]),
        # Many small steps add up to a large one.
        ([(40_000, 1), (40_000, 1)], [0, -80_000]),
    ],
)
def test_step_ahead_is_accepted_after_an_hour(machine: Machine, steps: list[tuple[int, int]], off: list[int]) -> None:
    assert clock_offsets(machine.clock(), machine, steps) == off


def test_step_ahead_is_logged(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    clock = machine.clock()
    clock_offsets(clock, machine, [(96 * HOUR, 1)] + 10 * [(0, MINUTE)])
    assert [record.getMessage() for record in caplog.records] == [
        "the wall clock is 96.0 hours ahead of the expected time: for 60 minutes log files do not expire by it"
    ]
    caplog.clear()
    clock_offsets(clock, machine, [(0, HOUR)] + 10 * [(0, MINUTE)])
    assert [record.getMessage() for record in caplog.records] == [
        "the wall clock has stayed 96.0 hours ahead: log files expire by it"
    ]


def test_restart_while_the_clock_is_wrong_keeps_the_offset(machine: Machine) -> None:
    machine.save(machine.clock())
    machine.passes(HOUR)
    machine.wall += 96 * HOUR
    clock = machine.clock()
    assert clock.now_ms() == machine.wall - 96 * HOUR
    machine.save(clock)
    machine.passes(HOUR)  # without a process: the machine has counted the time
    machine.wall -= 96 * HOUR
    assert machine.clock().now_ms() == machine.wall


def test_after_a_reboot_the_newest_message_bounds_the_clock(machine: Machine) -> None:
    machine.save(machine.clock())
    machine.starts_again(96 * HOUR)
    clock = machine.clock(newest_ms=START)
    assert clock.now_ms() == START
    assert clock.boot_ms is None, "it is a bound, and not known"
    machine.passes(HELD_MS)
    assert clock.now_ms() == machine.wall
    machine.save(clock)
    assert machine.clock(newest_ms=START).now_ms() == machine.wall, "it is known from now on"


def test_without_messages_the_wall_clock_is_used(machine: Machine) -> None:
    assert machine.clock().now_ms() == START


def test_messages_from_the_future_do_not_change_the_clock(machine: Machine) -> None:
    assert machine.clock(newest_ms=START + 5 * HOUR).now_ms() == START


# -- a store with this clock --------------------------------------------------------------------------------------


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Set how much of a disk of 100 GiB is used, in GiB."""
    share = [50]
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(
        retention_of.shutil, "disk_usage", lambda _: usage(100 << 30, share[0] << 30, (100 - share[0]) << 30)
    )
    return share


def open_store(directory: Path, machine: Machine) -> Store:
    config = replace(EXPIRING, retention_hours=72.0)
    return Store.open(directory, config, now_ms=lambda: machine.wall, elapsed=machine.elapsed)


def open_filled_store(directory: Path, machine: Machine) -> Store:
    store = open_store(directory, machine)
    for _ in range(100):
        append(store, *[make_record(b"x" * 1000)] * 20)
    store.flush()
    machine.passes(2 * HOUR)
    return store


@pytest.mark.parametrize("asked", [False, True])
def test_messages_survive_a_clock_four_days_ahead(
    tmp_path: Path, machine: Machine, used: list[int], asked: bool
) -> None:
    with open_filled_store(tmp_path, machine) as store:
        machine.wall += 96 * HOUR
        for _ in range(5):
            assert store.delete_expired(asked=asked).log_files == 0
            assert store.next_expiry_offset() == 0, "what waits in these files need not be stored anew"
            machine.passes(10_000)
        used[0] = 90
        assert store.delete_expired().reason == "forced", "a full disk makes room whatever the time is"
        used[0] = 50
        machine.wall -= 96 * HOUR
        assert store.delete_expired(asked=asked).log_files == 0
        machine.passes(71 * HOUR)
        assert store.delete_expired(asked=asked).log_files > 0, "three days are over"


def test_restart_with_a_clock_ahead_expires_no_messages(tmp_path: Path, machine: Machine, used: list[int]) -> None:
    open_filled_store(tmp_path, machine).close()
    machine.wall += 96 * HOUR
    with open_store(tmp_path, machine) as store:
        assert store.delete_expired().log_files == 0
        machine.passes(HELD_MS)
        assert store.delete_expired().log_files > 0


def test_restart_on_the_same_boot_keeps_an_accepted_step(tmp_path: Path, machine: Machine, used: list[int]) -> None:
    with open_filled_store(tmp_path, machine) as store:
        machine.wall += 96 * HOUR
        assert store.delete_expired().log_files == 0
        machine.passes(HELD_MS)
        assert store.next_expiry_offset() > 0
    with open_store(tmp_path, machine) as store:
        assert store.delete_expired().log_files > 0
