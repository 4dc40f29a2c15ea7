"""Test that waiting messages are relocated, in small steps, before their log file is deleted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.delay import delayed_message_relocator
from raymq.actors.errors import StoreFull
from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.protocol import RecallStatus
from raymq.client import Message
from raymq.storage.files.file_calls import replaced
from raymq.storage.records.record import OFFSET_BODY
from raymq.storage.store import Store
from raymq.storage.timers import timer_log
from tests.crash.power_loss import Disk
from tests.unit.actors.timer_bench import CONFIG, DAY, HOST, HOUR, TimerBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TimerBench]:
    with closing(TimerBench(tmp_path)) as made:
        yield made


class ReadSteps:
    """Record how many records each read of the timer queue returned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[int] = []
        read = Store.read

        def reading(store: Store, topic: str, queue_id: int, *arguments: int, **named: bool) -> object:
            lease = read(store, topic, queue_id, *arguments, **named)
            if topic == TIMER_TOPIC:
                self.steps.append(len(lease.sizes))
            return lease

        monkeypatch.setattr(Store, "read", reading)


def fill(bench: TimerBench, files: int) -> None:
    """Fill so many log files with ordinary messages."""
    record = Message("t", b"x" * 50_000).encode(1, HOST)
    for _ in range(files):
        bench.core.append("t", 0, memoryview(record), np.array([len(record)], np.int32))
    bench.store.flush()


def check_all_delivered(bench: TimerBench, count: int) -> None:
    """Check that all messages are delivered once in the end."""
    bench.clock.advance(40 * DAY)
    bench.deliver()
    bodies = [record.body for record in bench.delivered() if len(record.body) == 4]
    assert sorted(bodies) == [b"%04d" % number for number in range(count)]


def test_requested_deletion_keeps_waiting_messages(bench: TimerBench) -> None:
    bench.send(*(b"%04d" % n for n in range(50)), after=30 * HOUR)
    fill(bench, 5)
    bench.clock.advance(2 * HOUR)
    bench.let_go()
    assert bench.store.min_physical_offset > 0
    check_all_delivered(bench, 50)


def test_only_messages_of_expiring_files_are_read(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover fault 13.26: each run read the entries of all waiting messages."""
    bench.send(*(b"%04d" % n for n in range(50)), after=30 * HOUR)
    fill(bench, 3)
    end = bench.store.max_physical_offset
    bench.send(*(b"%04d" % n for n in range(50, 1_000)), after=30 * HOUR)
    bench.core.timers.index_new_records()
    monkeypatch.setattr(bench.core.timers.log, "waiting", None)  # the full list is not read
    looked = ReadSteps(monkeypatch)
    assert bench.rescue(end) == end
    assert sum(looked.steps) <= 50 + delayed_message_relocator._STEP_MESSAGES + 50, (
        "the last step, and those that are taken in again"
    )
    monkeypatch.undo()
    check_all_delivered(bench, 1_000)


def test_relocation_runs_in_bounded_steps(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover fault 13.26: steps of 5,000 messages, every ten seconds of one daily hour."""
    monkeypatch.setattr(delayed_message_relocator, "_STEP_MESSAGES", 20)
    bench.send(*(b"%04d" % n for n in range(1_000)), after=30 * HOUR)
    end = bench.store.max_physical_offset
    before, grown = bench.store.max_offset(TIMER_TOPIC, 0), []
    bench.core.rescue.want(end)
    while bench.core.rescue.step():
        after = bench.store.max_offset(TIMER_TOPIC, 0)
        grown.append(after - before)
        before = after
    assert (max(grown), sum(grown)) == (20, 1_000)
    bench.store.flush()
    assert bench.core.rescue.relocate_before(end) == end
    assert not bench.core.rescue.step(), "there is nothing to do until more files go"
    check_all_delivered(bench, 1_000)


def test_delivered_and_recalled_messages_are_not_relocated(bench: TimerBench) -> None:
    near = bench.send(*(b"%04d" % n for n in range(10)), after=5.0)
    far = bench.send(*(b"%04d" % n for n in range(10, 30)), after=30 * HOUR)
    assert bench.recall(far[3]) is RecallStatus.WITHDRAWN
    bench.clock.advance(5)
    assert len(bench.deliver()) == len(near)
    end, before = bench.store.max_physical_offset, bench.store.max_offset(TIMER_TOPIC, 0)
    assert bench.rescue(end) == end
    assert bench.store.max_offset(TIMER_TOPIC, 0) - before == 19
    assert bench.recall(far[3]) is RecallStatus.WITHDRAWN
    assert bench.recall(far[4]) is RecallStatus.WITHDRAWN
    assert bench.recall(near[0]) is RecallStatus.DELIVERED
    bench.kill()
    bench.clock.advance(30 * HOUR)
    assert len(bench.deliver()) == 18


def test_forgotten_delivered_message_is_not_relocated(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock back to before the message was due."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1)
    bench.send(b"0000", after=10.0)
    end = bench.store.max_physical_offset
    bench.clock.advance(3 * HOUR)
    assert bench.deliver() == [b"0000"]
    bench.forget()
    assert sum(map(len, bench.core.timers.log.runs)) == 0
    bench.kill()
    bench.clock.advance(5.0 - 3 * HOUR)
    assert bench.rescue(end) == end
    check_all_delivered(bench, 1)


def test_delivered_messages_are_not_read(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send(*(b"%04d" % n for n in range(900)), after=5.0)
    bench.send(b"0900", after=9 * HOUR)
    bench.clock.advance(5)
    assert len(bench.deliver()) == 900
    looked = ReadSteps(monkeypatch)
    end = bench.store.max_physical_offset
    assert bench.rescue(end) == end
    assert sum(looked.steps) <= 3
    check_all_delivered(bench, 901)


@pytest.mark.parametrize("kill", [False, True])
def test_kill_between_steps_loses_and_duplicates_nothing(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    monkeypatch.setattr(delayed_message_relocator, "_STEP_MESSAGES", 7)
    bench.send(*(b"%04d" % n for n in range(100)), after=30 * HOUR)
    end = bench.store.max_physical_offset
    for _ in range(9):
        bench.core.rescue.relocate_before(end)
        if kill:
            bench.kill()
    assert bench.rescue(end) == end
    check_all_delivered(bench, 100)


@pytest.mark.long
def test_retention_deletes_files_after_relocation(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound the log: files are deleted once their waiting messages are relocated."""
    monkeypatch.setattr(delayed_message_relocator, "_STEP_MESSAGES", 10)
    bench.send(*(b"%04d" % n for n in range(300)), after=20 * DAY)
    lengths = []
    for _ in range(30):
        fill(bench, 1)
        bench.clock.advance(HOUR)
        bench.core.rescue.want(bench.store.next_expiry_offset())
        while bench.core.rescue.step():
            pass
        bench.store.flush()
        bench.store.delete_expired(rescue=bench.core.rescue.relocate_before)
        lengths.append(bench.store.max_physical_offset - bench.store.min_physical_offset)
    assert max(lengths) <= 12 * CONFIG.commitlog_file_bytes
    assert bench.store.min_physical_offset > 15 * CONFIG.commitlog_file_bytes
    check_all_delivered(bench, 300)


def test_repeated_relocation_does_not_grow_message(bench: TimerBench) -> None:
    """Bound the origins that a copy lists; of a repeated origin the last one counts."""
    [message] = bench.send(b"0000", after=39 * DAY)
    sizes = []
    for _ in range(60):
        end = bench.store.max_physical_offset
        assert bench.rescue(end) == end
        sizes.append(int(bench.store.entries(TIMER_TOPIC, 0, bench.store.max_offset(TIMER_TOPIC, 0) - 1, 1)[1][0]))
    assert max(sizes) - min(sizes) <= (delayed_message_relocator._MAX_ORIGINS + 1) * 40
    bench.kill()
    assert bench.recall(message) is RecallStatus.WITHDRAWN
    bench.clock.advance(40 * DAY)
    assert bench.deliver() == []


def test_damaged_record_does_not_stop_relocation(bench: TimerBench) -> None:
    bench.send(*(b"%04d" % n for n in range(30)), after=30 * HOUR)
    place = int(bench.store.entries(TIMER_TOPIC, 0, 7, 1)[0][0])
    bench.core.timers.index_new_records()
    bench.kill()
    with (bench.directory / "commitlog" / f"{0:020d}").open("r+b") as stream:
        stream.seek(place + OFFSET_BODY)
        stream.write(b"X")
    end = bench.store.max_physical_offset
    assert bench.rescue(end) == end
    bench.clock.advance(30 * HOUR)
    assert sorted(bench.deliver()) == [b"%04d" % n for n in range(30) if n != 7]


def test_full_disk_postpones_relocation(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send(*(b"%04d" % n for n in range(30)), after=30 * HOUR)
    end = bench.store.max_physical_offset

    def full(*_: object, **__: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "append", full)
        for _ in range(2):
            assert bench.core.rescue.relocate_before(end) == 0
            with pytest.raises(StoreFull):
                bench.core.rescue.step()
    assert bench.core.rescue.relocate_before(0) == 0
    assert bench.rescue(end) == end
    check_all_delivered(bench, 30)


def test_file_is_kept_until_replicas_have_relocated_copies(bench: TimerBench) -> None:
    """Guard against replicas that delete the file while only a lost master has the copies."""
    bench.send(*(b"%04d" % n for n in range(50)), after=30 * HOUR)
    fill(bench, 5)
    before = bench.store.max_physical_offset
    bench.store.confirmed.hold(before)
    bench.clock.advance(2 * HOUR)
    bench.let_go()
    assert bench.store.max_physical_offset > before, "it was stored anew"
    assert bench.store.min_physical_offset == 0
    bench.store.confirmed.advance(bench.store.max_physical_offset)
    bench.let_go()
    assert bench.store.min_physical_offset > 0


@pytest.mark.parametrize("luck", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["timer", "level", "delivered"])
def test_file_is_kept_until_relocation_is_on_disk(tmp_path: Path, kind: str, luck: float) -> None:
    """Guard against a power loss of relocated or delivered copies whose original files are deleted."""
    (tmp_path / "0").mkdir()
    disk = Disk(tmp_path / "0")
    config = replace(CONFIG, flush="sync", flush_interval_ms=3_600_000)
    with replaced(disk):
        bench = TimerBench(tmp_path / "0", config)
        bodies = [b"%04d" % n for n in range(50)]
        if kind == "level":
            bench.append(*(Message("t", body, delay_level=18) for body in bodies))
        else:
            bench.send(*bodies, after=30.0 if kind == "delivered" else 30 * HOUR)
        fill(bench, 5)
        bench.store._save_checkpoint()
        bench.checkpoint()
        bench.clock.advance(1.5 * HOUR)
        if kind == "delivered":
            bench.core.deliver_due()
        for _ in range(9):
            bench.core.delete_expired(asked=True)
        assert bench.store.wait_for_removals(30)
        disk.after_power_loss(tmp_path / "1", random.Random(luck), luck)
        bench.close()
    disk.close()
    with closing(TimerBench(tmp_path / "1", config)) as again:
        again.clock.now = bench.clock.now + 40 * DAY
        again.core.deliver_due()
        again.store.flush()
        assert sorted(record.body for record in again.delivered() if len(record.body) == 4) == bodies
        again.let_go()
        assert again.store.min_physical_offset > 0


@pytest.mark.parametrize("kind", ["level", "timer"])
def test_full_disk_deletes_files_before_waiting_message(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Cover fault 13.25: one unmovable message kept all files on a full disk."""
    fill(bench, 4)
    fields = {"delay_level": 1} if kind == "level" else {"deliver_at": bench.clock.now + 20 * DAY}
    bench.append(Message("t", b"0000", **fields))  # type: ignore[arg-type]
    place = bench.store.max_physical_offset
    fill(bench, 4)
    bench.clock.advance(5 * DAY)

    def full(*_: object, **__: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "append", full)
        assert bench.store.delete_expired(asked=True, rescue=bench.core.rescue.relocate_before).log_files
    file_bytes = CONFIG.commitlog_file_bytes
    assert 0 < bench.store.min_physical_offset <= place < bench.store.min_physical_offset + 2 * file_bytes
    for _ in range(3):
        bench.store.delete_expired(asked=True, rescue=bench.core.rescue.relocate_before)
        bench.store.flush()
    assert bench.store.min_physical_offset > place
    check_all_delivered(bench, 1)


def test_relocation_writes_above_disk_limit(bench: TimerBench) -> None:
    bench.send(b"0000", after=30 * HOUR)
    end = bench.store.max_physical_offset
    bench.config = replace(bench.config, disk_refuse_ratio=0.000001)
    bench.kill()
    assert bench.rescue(end) == end
    with pytest.raises(StoreFull):
        bench.send(b"refused", after=1.0)
    bench.config = replace(bench.config, disk_refuse_ratio=1.0)
    bench.kill()
    check_all_delivered(bench, 1)


# -- delay levels ------------------------------------------------------------------------------------------------------


@pytest.fixture
def levels(tmp_path: Path) -> Iterator[TimerBench]:
    made = TimerBench(tmp_path, replace(CONFIG, delay_levels="1h 5h 2d", retention_hours=2.0))
    yield made
    made.close()


def send_levels(bench: TimerBench, count: int, level: int) -> None:
    bench.append(*(Message("t", b"%04d" % n, delay_level=level) for n in range(count)))


def check_delivered_after(bench: TimerBench, seconds: float, count: int) -> None:
    """Check that all messages are delivered once, `seconds` from now and not a millisecond earlier."""
    bench.clock.advance(seconds - 0.001)
    assert bench.deliver() == []
    bench.clock.advance(0.001)
    assert sorted(bench.deliver()) == [b"%04d" % number for number in range(count)]
    bench.clock.advance(2 * DAY)
    assert bench.deliver() == []


@pytest.mark.parametrize("end", ["goes on", "killed"])
def test_delayed_message_survives_deletion_of_its_log_file(levels: TimerBench, end: str) -> None:
    """Guard against the silent loss of delayed messages with deleted files."""
    send_levels(levels, 50, level=2)
    fill(levels, 5)
    levels.clock.advance(3 * HOUR)
    levels.let_go()
    assert levels.store.min_physical_offset > 0
    if end == "killed":
        levels.kill()
    check_delivered_after(levels, 2 * HOUR, 50)


def test_delay_level_in_kept_files_is_not_relocated(levels: TimerBench) -> None:
    send_levels(levels, 10, level=2)
    place = levels.store.max_physical_offset
    send_levels(levels, 10, level=1)
    levels.rescue(place)
    [timers] = levels.store.queues(TIMER_TOPIC)
    assert levels.store.max_offset(TIMER_TOPIC, timers) == 10
    assert levels.core.schedule.first_log_position() == place


def test_delay_level_is_relocated_in_bounded_steps(levels: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_message_relocator, "_STEP_MESSAGES", 20)
    send_levels(levels, 200, level=3)
    end, grown, before = levels.store.max_physical_offset, [], 0
    levels.core.rescue.want(end)
    while levels.core.schedule.first_log_position() is not None and levels.core.rescue.step():
        after = levels.store.max_offset(TIMER_TOPIC, 0)
        grown.append(after - before)
        before = after
    assert grown == [20] * 10
    check_delivered_after(levels, 2 * DAY, 200)


def test_damaged_delayed_message_is_set_aside(levels: TimerBench) -> None:
    send_levels(levels, 5, level=3)
    place = int(levels.store.entries("SCHEDULE_TOPIC_XXXX", 2, 2, 1)[0][0])
    levels.store._log.files.file_at(place).view[place + OFFSET_BODY] ^= 1
    levels.rescue(levels.store.max_physical_offset)
    assert [note.offset for note in levels.core.set_aside.notes()] == [2]
    levels.clock.advance(2 * DAY)
    assert sorted(levels.deliver()) == [b"0000", b"0001", b"0003", b"0004"]


def test_delayed_messages_lost_with_files_are_counted(levels: TimerBench) -> None:
    """Count and set aside, once, messages whose files were deleted without relocation."""
    send_levels(levels, 5, level=2)
    fill(levels, 3)
    levels.clock.advance(3 * HOUR)
    while levels.store.delete_expired(asked=True).log_files:
        pass
    send_levels(levels, 2, level=2)
    for _ in range(2):
        levels.clock.advance(5 * HOUR)
        levels.deliver()
        assert levels.core.set_aside.counts["delayLevel"] == 5
        assert [record.body for record in levels.delivered()[-2:]] == [b"0000", b"0001"]
    notes = levels.core.set_aside.notes()
    assert [(note.offset, note.reason) for note in notes] == [(n, "its log file was deleted") for n in range(5)]
