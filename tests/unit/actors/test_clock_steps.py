"""Nothing that waits for a while is ended early, held up or doubled by a step of the wall clock."""

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
    """A machine's clocks: the wall clock can be set, the other one cannot."""

    def __init__(self, wall: FakeClock) -> None:
        self.wall = wall
        self.elapsed = FakeClock(50.0)

    def sleep(self, seconds: float) -> None:
        self.wall.advance(seconds)
        self.elapsed.advance(seconds)

    def set_wall(self, seconds: float) -> None:
        """Step the wall clock by so much."""
        self.wall.advance(seconds)

    def open(self, directory: Path, config: StoreConfig) -> tuple[Store, BrokerCore]:
        steady = SteadyClock(self.wall, self.elapsed)
        store = Store.open(
            directory, config, now_ms=lambda: int(self.wall() * 1000), delay_clock_ms=lambda: int(steady() * 1000)
        )
        return store, BrokerCore("broker-a", store, clock=self.wall, steady=steady, elapsed=self.elapsed)


class SteppedBench(Bench):
    """Delay levels on such a machine: 1 minute, 2 minutes, 3 minutes, 4 minutes."""

    def __init__(self, directory: Path) -> None:
        self.machine: Machine | None = None
        super().__init__(directory, replace(CONFIG, delay_levels="1m 2m 3m 4m"))

    def open(self) -> None:
        self.machine = self.machine or Machine(self.clock)
        self.store, self.core = self.machine.open(self.directory, self.config)
        self.core.on_arrival = lambda _: None

    @property
    def hands(self) -> Machine:
        assert self.machine is not None
        return self.machine

    def delivered_after(self, seconds: float) -> bool:
        """Whether the next message comes when so much has passed, not a millisecond earlier."""
        self.hands.sleep(seconds - 0.002)
        early = self.core.deliver_due().delivered
        self.hands.sleep(0.004)
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
    """One append while the clock is a day ahead: store times, which never go back, stand still for a day."""
    bench.hands.set_wall(DAY)
    bench.append(Message("t", b"from tomorrow"))
    bench.hands.set_wall(-DAY)


@pytest.mark.parametrize("restarted", [False, True])
def test_delays_last_as_long_as_they_should_while_store_times_stand_still(bench: SteppedBench, restarted: bool) -> None:
    """Fault 13.20."""
    stop_store_times(bench)
    if restarted:
        bench.store.close()
        bench.open()
    for _ in range(3):
        delay(bench, 1)
        assert bench.delivered_after(MINUTE)
    assert len({record.store_timestamp_ms for record in bench.records("t")}) == 1, "as long as the day lasts"


def test_the_ladder_does_not_collapse_while_store_times_stand_still(bench: SteppedBench) -> None:
    """Fault 13.20: each retry waits its level, and the message does not rush into the dead letters."""
    stop_store_times(bench)
    place = bench.records("t")[-1].physical_offset
    for minutes in (3, 4, 4):
        bench.core.redelivery.send_back("g", place, 0, 5)
        assert bench.delivered_after(minutes * MINUTE)
        place = bench.records("%RETRY%g")[-1].physical_offset
    assert not bench.records("%DLQ%g")


@pytest.mark.parametrize("step", [-DAY, -HOUR, HOUR, DAY])
def test_a_step_while_a_message_waits_changes_nothing(bench: SteppedBench, step: float) -> None:
    delay(bench, 2)
    bench.hands.sleep(MINUTE)
    bench.hands.set_wall(step)
    assert bench.core.deliver_due().delivered == 0
    assert bench.delivered_after(MINUTE)


@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_step_leaves_no_broker_unasked(bench: SteppedBench, step: float) -> None:
    """Fault 13.29: after a step of -1 h the scheduler asked nobody for an hour."""
    delay(bench, 2)
    pace = PollSchedule(bench.hands.elapsed)
    report = bench.core.deliver_due()
    assert report.wait_ms == 2 * MINUTE * 1000
    pace.answered(report)
    bench.hands.set_wall(step)
    assert pace.wait() <= IDLE_SECONDS + 0.001
    assert bench.core.deliver_due().wait_ms == report.wait_ms


def test_what_was_stored_by_a_clock_that_was_ahead_waits_its_whole_delay_after_a_restart(bench: SteppedBench) -> None:
    bench.hands.set_wall(DAY)
    bench.store.close()
    bench.open()
    delay(bench, 1)
    delay(bench, 1)
    bench.hands.set_wall(-DAY)
    bench.crash()
    assert bench.core.deliver_due().delivered == 0, "not early"
    bench.hands.sleep(MINUTE - 0.001)
    assert bench.core.deliver_due().delivered == 0
    delay(bench, 1)
    bench.hands.sleep(0.001)
    assert bench.core.deliver_due().delivered == 2, "nor a day late"
    assert bench.delivered_after(MINUTE - 0.001)


@pytest.mark.parametrize(
    ("begin", "told_s", "now_s", "due_s"),
    [
        (0, [5, 6], 0, [5, 6]),
        (0, [10, 11], 0, [10, 10]),  # what is further off than the delay waits it from now on
        (0, [99, 3, 98], 0, [10, 3, 10]),
        (2, [5, 99], 4, [5, 14]),
    ],
)
def test_due_times(begin: int, told_s: list[int], now_s: int, due_s: list[int]) -> None:
    """A table; the level waits 10 s."""
    told_ms = np.array(told_s, np.int64) * 1000
    delays_ms = np.full(len(told_s), 10_000, np.int64)
    due_ms = DueTimes().of(begin, told_ms, delays_ms, begin + len(told_s), now_s * 1000)
    assert (due_ms // 1000).tolist() == due_s


def test_due_times_that_cannot_be_are_counted_from_when_they_were_seen() -> None:
    due_times = DueTimes()
    far, delay = np.array([99_000], np.int64), np.array([10_000], np.int64)
    assert due_times.of(0, far, delay, 1, 1_000).tolist() == [11_000]
    both = np.repeat(far, 2), np.repeat(delay, 2)
    assert due_times.of(0, *both, 2, 5_000).tolist() == [11_000, 99_000], "the second is seen later"
    assert due_times.of(1, far, delay, 2, 11_000).tolist() == [21_000]
    assert due_times.of(1, far, delay, 2, 2_000).tolist() == [12_000], "never longer than the delay"


def test_each_entry_is_held_to_the_delay_that_it_was_stored_with() -> None:
    told, delays = np.array([99_000, 20_000], np.int64), np.array([98_500, 10_000], np.int64)
    assert DueTimes().of(0, told, delays, 2, 1_000).tolist() == [99_000, 11_000]


# -- pop -----------------------------------------------------------------------------------------------------------


class SteppedPopBench(PopBench):
    """Pop on such a machine."""

    machine: Machine | None = None

    def open(self) -> None:
        self.machine = self.machine or Machine(self.clock)
        self.store, self.core = self.machine.open(self.directory, SMALL)
        self.pop = self.core.pop
        self.ready = []
        self.pop.on_ready = lambda *queue: self.ready.append(queue)

    @property
    def hands(self) -> Machine:
        assert self.machine is not None
        return self.machine


@pytest.fixture
def pops(tmp_path: Path) -> Iterator[SteppedPopBench]:
    made = SteppedPopBench(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("step", [-DAY, -HOUR, HOUR, DAY])
def test_a_step_neither_hides_nor_doubles_what_is_lent(pops: SteppedPopBench, step: float) -> None:
    """Fault 13.29."""
    pops.send(b"0", b"1")
    first, second = pops.receive(invisible=30.0)
    pops.hands.sleep(10.0)
    pops.hands.set_wall(step)
    assert not pops.receive(), "it is still with its consumer"
    assert pops.ack(first) == [True]
    pops.hands.sleep(20.0)
    assert bodies(pops.receive()) == [b"1"]
    assert pops.ack(second) == [False]


@pytest.mark.parametrize("step", [-DAY, -HOUR])
def test_after_a_restart_with_an_earlier_clock_a_delivery_lasts_no_longer_than_it_was_given_for(
    pops: SteppedPopBench, step: float
) -> None:
    """Fault 13.29."""
    pops.send(b"0")
    pops.receive(invisible=30.0)
    pops.hands.set_wall(step)
    for _ in range(2):
        pops.kill()
        assert not pops.receive()
    pops.hands.sleep(30.0)
    assert bodies(pops.receive()) == [b"0"]


@pytest.mark.parametrize("how", ["as it was", "renewed", "after a reset"])
@pytest.mark.parametrize("behind", [[DAY], [DAY, 3 * HOUR]])
def test_what_is_lent_after_a_clock_that_was_ahead_comes_again_when_its_time_is_over(
    pops: SteppedPopBench, behind: list[float], how: str
) -> None:
    """Names of deliveries stay ahead then; how long a message is hidden does not follow them."""
    pops.send(b"0")
    (handle,) = pops.receive(invisible=30.0)
    for step in behind:
        pops.hands.set_wall(-step)
        pops.kill()
    if how == "renewed":
        renewed = pops.change(handle, 30.0)
        assert renewed is not None
        handle = renewed
    elif how == "after a reset":
        pops.core.ensure_group("g")
        pops.core.reset_offset("g", "t", 0, 0)
        (handle,) = pops.receive(invisible=30.0)
    pops.hands.sleep(29.0)
    assert not pops.receive()
    pops.hands.sleep(1.0)
    assert bodies(pops.receive()) == [b"0"]
    assert pops.ack(handle) == [False]


def test_after_a_clock_that_was_ahead_each_delivery_still_has_a_name_of_its_own(pops: SteppedPopBench) -> None:
    """An old handle must not end a later delivery of the same message."""
    pops.send(b"0")
    handles = pops.receive()
    pops.hands.set_wall(-DAY)
    pops.kill()
    pops.core.ensure_group("g")
    pops.core.reset_offset("g", "t", 0, 0)
    for _ in range(3):
        handles += pops.receive(invisible=30.0)
        pops.hands.sleep(30.0)
    (newest,) = pops.receive(invisible=30.0)
    assert len(handles) == 4
    assert pops.ack(*handles) == [False] * 4
    assert pops.ack(newest) == [True]
