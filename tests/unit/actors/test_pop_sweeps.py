"""Test that a pop sweep costs only what expired or is dead, up to a limit."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from raymq.actors.broker.core.pop import pop_service as pop_module
from raymq.actors.broker.core.pop.deadline_heap import DeadlineHeap
from raymq.actors.broker.core.pop.unacked_queue import UnackedQueue
from raymq.actors.naming import dlq_topic
from raymq.storage.files.file_calls import FileCalls, replaced
from tests.store_records import flip_byte, log_file
from tests.unit.actors.pop_bench import PopBench
from tests.validation import check_invariants

SWEEP_MESSAGES = 100
GROUPS = [f"g{number}" for number in range(30)]


class SyncCounter(FileCalls):
    """Make real calls, and count the disk syncs of the creating thread."""

    def __init__(self) -> None:
        self.count = 0
        self._thread = threading.get_ident()

    def fsync(self, fd: int) -> None:
        self.count += threading.get_ident() == self._thread
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self.count += threading.get_ident() == self._thread
        super().fdatasync(fd)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    with closing(PopBench(tmp_path)) as made:
        yield made


def count_dead_letters(bench: PopBench) -> list[int]:
    return [bench.store.max_offset(dlq_topic(group), 0) if has_dead_letters(bench, group) else 0 for group in GROUPS]


def has_dead_letters(bench: PopBench, group: str) -> bool:
    return bool(bench.store.queues(dlq_topic(group)))


def test_dead_letters_of_all_groups_share_sweeps(bench: PopBench) -> None:
    """Guard against a stop of 1.5 s by 100 groups with 20 dead letters each.

    There was a disk sync for each group.
    """
    bench.send(*(b"%d" % number for number in range(20)))
    for group in GROUPS:
        bench.core.make_group(group)
        assert len(bench.receive(20, 1.0, group=group, maximum=0)) == 20
    bench.clock.advance(1)
    before, calls = 0, SyncCounter()
    with replaced(calls):
        for sweep in range(1, 100):
            bench.pop.sweep()
            there = count_dead_letters(bench)
            assert sum(there) - before <= SWEEP_MESSAGES
            if sweep == 1:
                assert min(there) >= 1, "each has its turn"
            if (before := sum(there)) == 20 * len(GROUPS):
                break
    assert calls.count == 0
    assert count_dead_letters(bench) == [20] * len(GROUPS)
    bench.store.flush()
    for _ in range(10):
        bench.pop.sweep()
    assert bench.store.in_flight.queues == {}


def test_sweep_skips_queues_without_expired_messages(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against sweeps of 22 ms every 50 ms with 20,000 queues in flight."""
    bench.send(b"0")
    for group in GROUPS:
        assert bench.receive(1, 60.0, group=group)
    looks: list[object] = []
    advance = bench.pop._advance

    def looked(lent: UnackedQueue, most: int) -> int:
        looks.append(lent)
        return advance(lent, most)

    monkeypatch.setattr(bench.pop, "_advance", looked)
    for _ in range(100):
        bench.clock.advance(0.5)
        bench.pop.sweep()
    assert looks == []
    bench.clock.advance(10)
    for _ in range(3):
        bench.pop.sweep()
    assert len(looks) == len(GROUPS)
    assert sorted(group for group, _, _ in bench.ready) == sorted(GROUPS)


def test_changed_invisible_times_expire_on_time(bench: PopBench) -> None:
    bench.send(*(b"%d" % number for number in range(3)))
    [first] = bench.receive(1, 30.0)
    [second] = bench.receive(1, 10.0)
    assert bench.pop.change_invisible("g", "t", 0, first.offset, first.pop_time_ms, 60_000)
    bench.kill()
    bench.clock.advance(10)
    bench.pop.sweep()
    assert bench.ready == [("g", "t", 0)]
    assert [handle.offset for handle in bench.receive(1)] == [second.offset]
    bench.clock.advance(50)
    bench.pop.sweep()
    assert sorted(handle.offset for handle in bench.receive(2)) == [first.offset, second.offset]


def test_deadline_is_due_once_at_earliest_time() -> None:
    chance = random.Random(5)
    alarms, expected = DeadlineHeap(), dict[tuple[str, str, int], int]()
    for now in range(2_000):
        for _ in range(chance.randrange(4)):
            queue, at = ("g", "t", chance.randrange(20)), now + chance.randrange(1, 300)
            alarms.set(queue, at)
            expected[queue] = min(at, expected.get(queue, at))
        due = list(alarms.due(now))
        assert sorted(due) == sorted(queue for queue, at in expected.items() if at <= now)
        assert [expected.pop(queue) for queue in due] == sorted(at for at in [now] * len(due))
        assert all(alarms.of(queue) == at for queue, at in expected.items())
        assert len(alarms._order) <= 2 * len(expected) + 64


def test_mass_expiry_is_spread_over_sweeps(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against a stop of 1.5 s when 400,000 deliveries expire together."""
    monkeypatch.setattr(pop_module, "_EXPIRED_AT_ONCE", 50)
    bench.send(*(b"%d" % number for number in range(30)))
    groups = GROUPS[:6]
    for group in groups:
        assert len(bench.receive(30, 1.0, group=group)) == 30
    bench.clock.advance(1)

    def ready() -> int:
        return sum(lent.ready_count for lent in bench.pop._lent.values())

    before = 0
    for _ in range(4):
        bench.pop.sweep()
        check_invariants(bench.pop)
        assert before < ready() <= before + 50
        before = ready()
    assert before == 180
    assert set(bench.ready) == {(group, "t", 0) for group in groups}, "who waits for them is told"
    for group in groups:
        assert len(bench.receive(30, 1.0, group=group)) == 30


def test_pop_takes_back_expired_messages_in_portions(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_module, "_EXPIRED_AT_ONCE", 10)
    bench.send(*(b"%d" % number for number in range(30)))
    assert len(bench.receive(30, 1.0)) == 30
    bench.clock.advance(1)
    found = [handle.body for _ in range(3) for handle in bench.receive(30)]
    assert found == [b"%d" % number for number in range(30)]


def test_unconfirmed_dead_letter_does_not_delay_later_sweeps(tmp_path: Path) -> None:
    """Guard against growing sweep delays of a queue after an unconfirmed dead letter."""
    with closing(PopBench(tmp_path)) as bench:
        bench.send(b"a", b"damaged", b"b")
        bench.receive(invisible=1, maximum=0)
        log = log_file(tmp_path)
        flip_byte(log, log.read_bytes().index(b"damaged"))
        bench.store.confirmed.hold(bench.store.max_physical_offset)
        bench.clock.advance(1)
        for _ in range(3):
            bench.pop.sweep()
        assert bench.committed() == 0
        bench.store.confirmed.advance(bench.store.max_physical_offset)
        bench.store.flush()
        bench.pop.sweep()
        assert [letter.body for letter in bench.dead_letters()] == [b"a", b"b"]
        assert bench.committed() == 3
