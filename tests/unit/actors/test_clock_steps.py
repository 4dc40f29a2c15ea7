"""Test that a step of the wall clock neither shortens, extends nor duplicates waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.broker import BrokerCore
from raymq.actors.broker.core.delay.due_times import DueTimes
from raymq.actors.poll_schedule import IDLE_SECONDS, PollSchedule
from raymq.client import Message
from raymq.storage.clock import SteadyClock
from raymq.storage.config import StoreConfig
from raymq.storage.store import Store
from tests.store_records import SMALL
from tests.unit.actors.bench import CONFIG, Bench
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.pop_bench import PopBench, bodies

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0


class Machine:
    """Provide a machine's clocks: a wall clock that can be set, and a steady clock."""

    def __init__(self, wall: FakeClock) -> None:
        self.wall = wall
        self.elapsed = FakeClock(50.0)

    def sleep(self, seconds: float) -> None:
        self.wall.advance(seconds)
        self.elapsed.advance(seconds)

    def set_wall(self, seconds: float) -> None:
        """Step the wall clock by this many seconds."""
        self.wall.advance(seconds)

    def open(self, directory: Path, config: StoreConfig) -> tuple[Store, BrokerCore]:
        steady = SteadyClock(self.wall, self.elapsed)
        store = Store.open(
            directory, config, now_ms=lambda: int(self.wall() * 1000), delay_clock_ms=lambda: int(steady() * 1000)
        )
        return store, BrokerCore("broker-a", store, clock=self.wall, steady=steady, elapsed=self.elapsed)


class SteppedBench(Bench):
    """Run delay levels of 1, 2, 3 and 4 minutes on such a machine."""

    def __init__(self, directory: Path) -> None:
        self.machine: Machine | None = None
        super().__init__(directory, replace(CONFIG, delay_levels="1m 2m 3m 4m"))

    def open(self) -> None:
        self.machine = self.machine or Machine(self.clock)
        self.store, self.core = self.machine.open(self.directory, self.config)
        self.core.on_arrival = lambda _: None

    @property
    def clocks(self) -> Machine:
        assert self.machine is not None
        return self.machine

    def delivered_after(self, seconds: float) -> bool:
        """Return whether the next message arrives exactly after this time."""
        self.clocks.sleep(seconds - 0.002)
        early = self.core.deliver_due().delivered
        self.clocks.sleep(0.004)
        return (early, self.core.deliver_due().delivered) == (0, 1)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SteppedBench]:
    made = SteppedBench(tmp_path)
    made.core.topics.create("t", 1)
    made.core.ensure_group("g")
    yield made
    made.store.close()


def delay(bench: SteppedBench, level: int) -> None:
    bench.append(Message("t", b"x", delay_level=level), delayed=True)


def stop_store_times(bench: SteppedBench) -> None:
    """Append once with the clock a day ahead: store times, which never go back, freeze."""
    bench.clocks.set_wall(DAY)
    bench.append(Message("t", b"from tomorrow"))
    bench.clocks.set_wall(-DAY)


@pytest.mark.parametrize("restarted", [False, True])
def test_delays_are_exact_while_store_times_stand_still(bench: SteppedBench, restarted: bool) -> None:
    """Reproduce fault 13.20."""
    stop_store_times(bench)
    if restarted:
        bench.store.close()
        bench.open()
    for _ in range(3):
        delay(bench, 1)
        assert bench.delivered_after(MINUTE)
    assert len({record.store_timestamp_ms for record in bench.records("t")}) == 1, "as long as the day lasts"


def test_retry_ladder_waits_while_store_times_stand_still(bench: SteppedBench) -> None:
    """Check that each retry waits its level before the dead letter queue (fault 13.20)."""
    stop_store_times(bench)
    place = bench.records("t")[-1].physical_offset
    for minutes in (3, 4, 4):
        bench.core.redelivery.send_back("g", place, 0, 5)
        assert bench.delivered_after(minutes * MINUTE)
        place = bench.records("%RETRY%g")[-1].physical_offset
    assert not bench.records("%DLQ%g")


@pytest.mark.parametrize("step", [-DAY, -HOUR, HOUR, DAY])
def test_clock_step_does_not_change_delay(bench: SteppedBench, step: float) -> None:
    delay(bench, 2)
    bench.clocks.sleep(MINUTE)
    bench.clocks.set_wall(step)
    assert bench.core.deliver_due().delivered == 0
    assert bench.delivered_after(MINUTE)


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_clock_step_does_not_delay_scheduler_polls(bench: SteppedBench, step: float) -> None:
    """Guard against a scheduler that polls no broker for an hour (fault 13.29)."""
    delay(bench, 2)
    pace = PollSchedule(bench.clocks.elapsed)
    report = bench.core.deliver_due()
    assert report.wait_ms == 2 * MINUTE * 1000
    pace.answered(report)
    bench.clocks.set_wall(step)
    assert pace.wait() <= IDLE_SECONDS + 0.001
    assert bench.core.deliver_due().wait_ms == report.wait_ms


def test_message_stored_by_fast_clock_waits_full_delay(bench: SteppedBench) -> None:
    bench.clocks.set_wall(DAY)
    bench.store.close()
    bench.open()
    delay(bench, 1)
    delay(bench, 1)
    bench.clocks.set_wall(-DAY)
    bench.crash()
    assert bench.core.deliver_due().delivered == 0, "not early"
    bench.clocks.sleep(MINUTE - 0.001)
    assert bench.core.deliver_due().delivered == 0
    delay(bench, 1)
    bench.clocks.sleep(0.001)
    assert bench.core.deliver_due().delivered == 2, "nor a day late"
    assert bench.delivered_after(MINUTE - 0.001)


@pytest.mark.parametrize(
    ("begin", "told_s", "now_s", "due_s"),
    [
        (0, [5, 6], 0, [5, 6]),
        (0, [10, 11], 0, [10, 10]),  # an entry further off than the delay waits the delay from now on
        (0, [99, 3, 98], 0, [10, 3, 10]),
        (2, [5, 99], 4, [5, 14]),
    ],
)
def test_due_times_are_capped_by_level_delay(begin: int, told_s: list[int], now_s: int, due_s: list[int]) -> None:
    """Use a table whose level waits 10 s."""
    requested_ms = np.array(told_s, np.int64) * 1000
    delays_ms = np.full(len(told_s), 10_000, np.int64)
    due_ms = DueTimes().of(begin, requested_ms, delays_ms, begin + len(told_s), now_s * 1000)
    assert (due_ms // 1000).tolist() == due_s


def test_impossible_due_times_count_from_first_sight() -> None:
    due_times = DueTimes()
    far, delay = np.array([99_000], np.int64), np.array([10_000], np.int64)
    assert due_times.of(0, far, delay, 1, 1_000).tolist() == [11_000]
    both = np.repeat(far, 2), np.repeat(delay, 2)
    assert due_times.of(0, *both, 2, 5_000).tolist() == [11_000, 99_000], "the second is seen later"
    assert due_times.of(1, far, delay, 2, 11_000).tolist() == [21_000]
    assert due_times.of(1, far, delay, 2, 2_000).tolist() == [12_000], "never longer than the delay"


def test_due_time_is_capped_by_delay_of_its_entry() -> None:
    requested, delays = np.array([99_000, 20_000], np.int64), np.array([98_500, 10_000], np.int64)
    assert DueTimes().of(0, requested, delays, 2, 1_000).tolist() == [99_000, 11_000]


# -- pop -----------------------------------------------------------------------------------------------------------


class SteppedPopBench(PopBench):
    """Run pop on such a machine."""

    machine: Machine | None = None

    def open(self) -> None:
        self.machine = self.machine or Machine(self.clock)
        self.store, self.core = self.machine.open(self.directory, SMALL)
        self.pop = self.core.pop
        self.ready = []
        self.pop.on_ready = lambda *queue: self.ready.append(queue)

    @property
    def clocks(self) -> Machine:
        assert self.machine is not None
        return self.machine


@pytest.fixture
def pops(tmp_path: Path) -> Iterator[SteppedPopBench]:
    made = SteppedPopBench(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("step", [-DAY, -HOUR, HOUR, DAY])
def test_clock_step_keeps_invisible_duration(pops: SteppedPopBench, step: float) -> None:
    """Reproduce fault 13.29."""
    pops.send(b"0", b"1")
    first, second = pops.receive(invisible=30.0)
    pops.clocks.sleep(10.0)
    pops.clocks.set_wall(step)
    assert not pops.receive(), "it is still with its consumer"
    assert pops.ack(first) == [True]
    pops.clocks.sleep(20.0)
    assert bodies(pops.receive()) == [b"1"]
    assert pops.ack(second) == [False]


@pytest.mark.parametrize("step", [-DAY, -HOUR])
def test_restart_with_earlier_clock_keeps_invisible_duration(pops: SteppedPopBench, step: float) -> None:
    """Reproduce fault 13.29 after a restart."""
    pops.send(b"0")
    pops.receive(invisible=30.0)
    pops.clocks.set_wall(step)
    for _ in range(2):
        pops.kill()
        assert not pops.receive()
    pops.clocks.sleep(30.0)
    assert bodies(pops.receive()) == [b"0"]


@pytest.mark.parametrize("how", ["as it was", "renewed", "after a reset"])
@pytest.mark.parametrize("behind", [[DAY], [DAY, 3 * HOUR]])
def test_invisible_duration_is_exact_after_fast_clock(pops: SteppedPopBench, behind: list[float], how: str) -> None:
    """Check that invisible durations do not follow pop times, which stay ahead."""
    pops.send(b"0")
    (handle,) = pops.receive(invisible=30.0)
    for step in behind:
        pops.clocks.set_wall(-step)
        pops.kill()
    if how == "renewed":
        renewed = pops.change(handle, 30.0)
        assert renewed is not None
        handle = renewed
    elif how == "after a reset":
        pops.core.ensure_group("g")
        pops.core.reset_offset("g", "t", 0, 0)
        (handle,) = pops.receive(invisible=30.0)
    pops.clocks.sleep(29.0)
    assert not pops.receive()
    pops.clocks.sleep(1.0)
    assert bodies(pops.receive()) == [b"0"]
    assert pops.ack(handle) == [False]


def test_receipt_handles_stay_unique_after_fast_clock(pops: SteppedPopBench) -> None:
    """Guard against an old handle that ends a later delivery of the same message."""
    pops.send(b"0")
    handles = pops.receive()
    pops.clocks.set_wall(-DAY)
    pops.kill()
    pops.core.ensure_group("g")
    pops.core.reset_offset("g", "t", 0, 0)
    for _ in range(3):
        handles += pops.receive(invisible=30.0)
        pops.clocks.sleep(30.0)
    (newest,) = pops.receive(invisible=30.0)
    assert len(handles) == 4
    assert pops.ack(*handles) == [False] * 4
    assert pops.ack(newest) == [True]
