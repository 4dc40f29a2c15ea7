"""Test timed messages with a fake clock: delivered on time, once, and withdrawable."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raymq.actors.broker.core.delay import timer_message_store
from raymq.actors.broker.core.delay.timer_records import MAX_AHEAD_MS, delete_key, due_of
from raymq.actors.errors import InvalidInput, MessageIllegal, StoreFull
from raymq.actors.naming import TIMER_TOPIC
from raymq.actors.protocol import RecallStatus
from raymq.client import Message
from raymq.storage.tables.topic_config import TopicConfig
from raymq.storage.timers import timer_log
from raymq.storage.timers.timer_entry import HOUR_MS, EntryKind, key_of
from raymq.storage.timers.timer_log import TimerLog
from tests.unit.actors.timer_bench import DAY, HOST, HOUR, TimerBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TimerBench]:
    with closing(TimerBench(tmp_path)) as made:
        yield made


# -- due times


def test_delivery_is_in_order_of_due_times_and_never_early(bench: TimerBench) -> None:
    for after in (3.0, 1.0, 2.0, 1.0):
        bench.send(b"%d" % after, after=after)
    seen = []
    for tenths in range(1, 40):
        bench.clock.now = 1_700_000_000.0 + tenths / 10
        seen += [(body, tenths / 10) for body in bench.deliver()]
    assert seen == [(b"1", 1.0), (b"1", 1.0), (b"2", 2.0), (b"3", 3.0)]


def test_delivery_is_exact_to_the_millisecond(bench: TimerBench) -> None:
    [message] = bench.send(b"m", after=1.2345)
    assert message.due_ms == bench.now_ms() + 1_235
    bench.clock.advance(1.2344)
    assert bench.deliver() == []
    assert bench.core.deliver_due().next_due_ms == message.due_ms
    bench.clock.now = message.due_ms / 1000
    assert bench.deliver() == [b"m"]
    assert bench.core.deliver_due().next_due_ms is None


@pytest.mark.parametrize("after", [59.0, 61.0, HOUR - 1, HOUR, 25 * HOUR, 39.9 * DAY])
def test_near_and_far_messages_are_delivered_on_time(bench: TimerBench, after: float) -> None:
    bench.send(b"m", after=after)
    for step in (after - 120, 60.0, 59.9):
        bench.clock.advance(step)
        assert bench.deliver() == [] or after < 120
    bench.clock.now = 1_700_000_000.0 + after - 0.001
    assert bench.deliver() == []
    bench.clock.now = 1_700_000_000.0 + after
    assert bench.deliver() == [b"m"]


def test_backlog_is_delivered_after_long_pause(bench: TimerBench) -> None:
    afters = [random.Random(1).uniform(1, 5 * HOUR) for _ in range(300)]
    for after in afters:
        bench.send(b"%012.3f" % after, after=after)
    bench.clock.advance(6 * HOUR)
    assert bench.deliver() == [b"%012.3f" % after for after in sorted(afters)]
    assert bench.core.deliver_due().lateness_ms == 0


def test_delivery_pass_is_bounded_and_reports_lateness(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_message_store, "_MAX_PER_PASS", 10)
    bench.send(*(b"%02d" % n for n in range(25)), after=1.0)
    bench.clock.advance(1.5)
    reports = [bench.core.deliver_due() for _ in range(4)]
    assert [report.delivered for report in reports] == [10, 10, 5, 0]
    assert [report.lateness_ms for report in reports] == [500, 500, 500, 0]
    assert reports[0].next_due_ms == bench.now_ms() - 500
    assert [record.body for record in bench.delivered()] == [b"%02d" % n for n in range(25)]


@pytest.mark.parametrize("jump", [-10.0, -2 * HOUR, -3 * DAY])
def test_delivery_after_clock_is_set_back(bench: TimerBench, jump: float) -> None:
    bench.send(b"before", after=30.0)
    bench.clock.advance(20.0)
    assert bench.deliver() == []
    bench.clock.advance(jump)
    bench.send(b"after", after=5.0)
    assert bench.deliver() == []
    bench.clock.advance(5.0)
    assert bench.deliver() == [b"after"]
    bench.clock.now = 1_700_000_030.0
    assert bench.deliver() == [b"before"]


def test_delivery_after_clock_is_set_forward_and_back(bench: TimerBench) -> None:
    bench.send(b"a", after=10.0)
    bench.send(b"b", after=2 * HOUR)
    bench.clock.advance(3 * HOUR)
    assert bench.deliver() == [b"a", b"b"]
    bench.clock.advance(-3 * HOUR)
    bench.send(b"c", after=10.0)
    bench.send(b"d", after=2 * HOUR)
    assert bench.deliver() == []
    bench.clock.advance(3 * HOUR)
    assert bench.deliver() == [b"c", b"d"]


def test_delivered_entries_are_forgotten(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1)
    bench.send(b"a", after=10.0)
    bench.send(b"b", after=HOUR + 10.0)
    bench.deliver()
    bench.checkpoint()
    bench.clock.advance(3 * HOUR)
    assert bench.deliver() == [b"a", b"b"]
    bench.checkpoint()
    assert sum(map(len, bench.core.timers.log.runs)) == 4, "the copies may not be on disk yet"
    bench.send(b"c", after=5 * HOUR)
    bench.forget()
    assert sum(map(len, bench.core.timers.log.runs)) == 1
    bench.kill()
    bench.clock.advance(5 * HOUR)
    assert bench.deliver() == [b"c"]


def test_delivered_entries_stay_until_replicas_have_the_copies(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former master keeps its timer log when its log is cut at what the replicas have."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1)
    bench.send(b"a", after=10.0)
    bench.deliver()
    bench.checkpoint()
    bench.store.confirmed.hold(bench.store.max_physical_offset)
    bench.clock.advance(3 * HOUR)
    bench.core.deliver_due()
    bench.forget()
    assert sum(map(len, bench.core.timers.log.runs)) == 2
    bench.store.confirmed.advance(bench.store.max_physical_offset)
    bench.forget()
    assert sum(map(len, bench.core.timers.log.runs)) == 0


def test_message_for_past_hour_is_not_forgotten(bench: TimerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock back."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 1)
    bench.send(b"a", after=10.0)
    bench.clock.advance(3 * HOUR)
    assert bench.deliver() == [b"a"]
    bench.forget()
    bench.clock.advance(-3 * HOUR)
    bench.send(b"b", after=10.0)
    bench.checkpoint()
    bench.clock.advance(3 * HOUR)
    bench.forget()
    bench.kill()
    assert bench.deliver() == [b"b"]


@pytest.mark.parametrize("killed", [False, True])
def test_clock_ahead_causes_no_second_delivery(
    bench: TimerBench, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Cover waiting entries in one run, and their ends in another run that is deleted."""
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", 64)
    messages = bench.send(*(b"%d" % n for n in range(60)), after=HOUR)
    bench.send(*(b"late %d" % n for n in range(100)), after=240 * HOUR)
    bench.deliver()
    bench.store.flush()
    bench.checkpoint()
    assert {bench.recall(message) for message in messages[:30]} == {RecallStatus.WITHDRAWN}
    bench.clock.advance(24 * HOUR)
    assert len(bench.deliver()) == 30
    for _ in range(4):
        bench.forget()
        bench.send(*(b"later" for _ in range(5)), after=480 * HOUR)
        bench.clock.advance(HOUR)
        bench.deliver()
    assert len(bench.core.timers.log.find(messages[0].due_ms or 0, key_of(f"t_{messages[0].unique_key}"))) == 0
    if killed:
        bench.kill()
    bench.clock.advance(-28 * HOUR)
    bench.deliver()
    bench.send(b"new", after=HOUR / 2)
    found: list[bytes] = []
    for _ in range(12):
        bench.clock.advance(HOUR / 6)
        found += bench.deliver()
    assert found == [b"new"]
    assert {bench.recall(message) for message in messages[:30]} == {RecallStatus.WITHDRAWN}
    assert {bench.recall(message) for message in messages[30:]} == {RecallStatus.DELIVERED}


# -- content


def test_delivered_message_keeps_its_content(bench: TimerBench) -> None:
    sent = Message("t", b"b", tags="x", keys=["k"], properties={"p": "ü"}, deliver_at=bench.clock.now + 1)
    placed = bench.append(sent, queue_id=1)
    assert (placed.topic, placed.queue_ids.tolist()) == (TIMER_TOPIC, [0])
    bench.clock.advance(1)
    bench.deliver()
    [record] = bench.delivered()
    assert (record.topic, record.queue_id, record.body, record.tags, record.keys) == ("t", 1, b"b", "x", ["k"])
    assert record.properties["p"] == "ü"
    assert record.unique_key == sent.unique_key
    assert record.born_timestamp_ms == 1
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("t", "1")
    assert record.store_timestamp_ms >= int(record.properties["TIMER_OUT_MS"]) == sent.due_ms


def test_message_with_past_due_time_is_delivered_at_once(bench: TimerBench) -> None:
    placed = bench.append(Message("t", b"now", deliver_at=bench.clock.now))
    assert placed.topic == "t"
    assert [record.body for record in bench.delivered()] == [b"now"]


def test_batch_with_past_and_future_times_stays_together(bench: TimerBench) -> None:
    placed = bench.append(
        Message("t", b"past", deliver_at=bench.clock.now - 5), Message("t", b"future", deliver_at=bench.clock.now + 5)
    )
    assert placed.topic == TIMER_TOPIC
    assert bench.deliver() == [b"past"]
    bench.clock.advance(5)
    assert bench.deliver() == [b"future"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"TIMER_DELIVER_MS": "5000"}, 5_000),
        ({"TIMER_DELAY_MS": "5000"}, 1_005_000),
        ({"TIMER_DELAY_SEC": "5"}, 1_005_000),
        ({"TIMER_DELIVER_MS": "5000", "TIMER_DELAY_SEC": "1"}, 1_001_000),
        ({}, None),
        ({"TIMER_DELIVER_MS": str(1_000_000 + MAX_AHEAD_MS)}, 1_000_000 + MAX_AHEAD_MS),
    ],
)
def test_due_time_is_read_from_client_properties(told: dict[str, str], expected: int | None) -> None:
    assert due_of(told, 1_000_000) == expected


@pytest.mark.parametrize(
    "told",
    [
        {"TIMER_DELIVER_MS": str(1_000_001 + MAX_AHEAD_MS)},
        {"TIMER_DELAY_SEC": str(10**30)},
        {"TIMER_DELAY_MS": "soon"},
    ],
)
def test_invalid_due_times_are_refused(told: dict[str, str]) -> None:
    with pytest.raises(MessageIllegal):
        due_of(told, 1_000_000)


def test_batch_with_negative_due_time_loses_nothing(bench: TimerBench) -> None:
    record = bytearray(Message("t", b"never", deliver_at=bench.clock.now).encode(1, HOST))
    told = b"TIMER_DELIVER_MS\x01%d" % bench.now_ms()
    record = record.replace(told, (b"TIMER_DELIVER_MS\x01-" + told[18:]))
    assert len(told[18:]) + 1 == len(b"%d" % bench.now_ms()), "the record's sizes stay right"
    later = Message("t", b"later", deliver_at=bench.clock.now + 1).encode(1, HOST)
    sizes = np.array([len(record), len(later)], np.int32)
    bench.core.append("t", 0, memoryview(bytes(record) + later), sizes, delayed=True)
    assert bench.deliver() == [b"never"]
    bench.clock.advance(1)
    assert bench.deliver() == [b"later"]


def test_refused_message_leaves_nothing_stored(bench: TimerBench) -> None:
    with pytest.raises(MessageIllegal):
        bench.append(Message("t", b"m", deliver_at=bench.clock.now + 41 * DAY))
    with pytest.raises(MessageIllegal, match="properties"):
        bench.append(Message("t", b"m", properties={"p": "x" * 32_000}, deliver_at=bench.clock.now + 1))
    with pytest.raises(InvalidInput):
        bench.append(Message("t", b"m", deliver_at=bench.clock.now + 1), Message("t", b"no time"))
    assert TIMER_TOPIC not in bench.store.topics()


def test_deleted_topic_or_damaged_record_blocks_no_delivery(bench: TimerBench) -> None:
    bench.store.topic_configs.put(TopicConfig("gone", 1, 1))
    waiting = [Message(topic, topic.encode(), deliver_at=bench.clock.now + 1) for topic in ("gone", "t")]
    encoded = [message.encode(1, bytes([127, 0, 0, 1, 0, 0, 0, 0])) for message in waiting]
    for message, record in zip(waiting, encoded, strict=True):
        bench.core.append(message.topic, 0, memoryview(record), np.array([len(record)], np.int32), delayed=True)
    [damaged] = bench.send(b"damaged", after=1.0)
    place = bench.store.max_physical_offset
    bench.store.delete_topic("gone")
    bench.core.timers.index_new_records()
    log = bench.directory / "commitlog" / f"{0:020d}"
    with log.open("r+b") as stream:
        at = log.read_bytes()[:place].rfind(b"damaged")
        stream.seek(at)
        stream.write(b"D")
    bench.clock.advance(1)
    assert bench.deliver() == [b"t"]
    bench.clock.advance(HOUR)
    assert bench.deliver() == []
    assert bench.recall(damaged) is RecallStatus.UNKNOWN


def test_dropped_entry_is_forgotten_with_its_record(bench: TimerBench) -> None:
    """Cover a lost end of the log, whose queue offsets are given to other messages."""
    begin = bench.store.max_physical_offset
    [message] = bench.send(b"m", after=1.0)
    bench.store.delete_topic("t")
    bench.clock.advance(1)
    bench.core.deliver_due()
    assert message.due_ms is not None
    entry_key = message.due_ms, key_of(delete_key("t", message.unique_key))
    assert bench.core.timers.log.find(*entry_key)["kind"].tolist() == [EntryKind.WAITS, EntryKind.DROPPED]
    assert len(TimerLog(bench.directory / "raymq" / "timers", log_end=begin).find(*entry_key)) == 0


@pytest.mark.parametrize("left", [0, 3])
def test_messages_after_lost_log_end_are_delivered(bench: TimerBench, left: int) -> None:
    """Cover timer files that reach the disk before the log."""
    for number in range(left):
        bench.send(b"%d" % number, after=10.0)
    bench.close()
    (bench.directory / "raymq" / "timers" / "state.json").write_text('{"enqueued": 7, "logEnd": 0}')
    for path in (bench.directory / "raymq" / "timers").glob("0*"):
        path.unlink()
    bench.open()
    bench.send(*(b"new %d" % n for n in range(10)), after=5.0)
    bench.clock.advance(5)
    assert bench.deliver() == [b"new %d" % n for n in range(10)]


# -- deletion of log files


def test_waiting_messages_survive_deletion_of_log_files(bench: TimerBench) -> None:
    early = bench.send(*(b"%03d" % n for n in range(100)), after=30 * HOUR)
    assert bench.recall(early[7]) is RecallStatus.WITHDRAWN
    first = bench.store.min_physical_offset
    for _ in range(6):
        bench.clock.advance(3 * HOUR)
        filler = Message("t", b"x" * 50_000)
        for _ in range(3):
            record = filler.encode(1, bytes([127, 0, 0, 1, 0, 0, 0, 0]))
            bench.core.append("t", 0, memoryview(record), np.array([len(record)], np.int32))
        bench.store.flush()
        bench.store.delete_expired(rescue=bench.rescue)
        bench.kill()
    assert bench.store.min_physical_offset > first + 10 * CONFIG_FILE_BYTES
    assert bench.recall(early[8]) is RecallStatus.WITHDRAWN
    assert bench.recall(early[7]) is RecallStatus.WITHDRAWN
    before = {record.body for record in bench.delivered()}
    assert before == {b"x" * 50_000}
    bench.clock.now = 1_700_000_000.0 + 30 * HOUR
    assert sorted(bench.deliver()) == [b"%03d" % n for n in range(100) if n not in (7, 8)]
    bench.kill()
    assert bench.deliver() == []


CONFIG_FILE_BYTES = 1 << 16


def test_waiting_messages_are_relocated_on_full_disk(bench: TimerBench) -> None:
    bench.send(b"m", after=30 * HOUR)
    for _ in range(3):
        record = Message("t", b"x" * 50_000).encode(1, bytes([127, 0, 0, 1, 0, 0, 0, 0]))
        bench.core.append("t", 0, memoryview(record), np.array([len(record)], np.int32))
    bench.store.flush()
    bench.config = replace(bench.config, disk_refuse_ratio=0.000001)
    bench.kill()
    with pytest.raises(StoreFull):
        bench.send(b"refused", after=1.0)
    bench.clock.advance(2 * HOUR)
    bench.store.delete_expired(rescue=bench.rescue)
    assert bench.store.min_physical_offset > 0
    with pytest.raises(StoreFull):
        bench.send(b"refused", after=1.0)
    bench.config = replace(bench.config, disk_refuse_ratio=1.0)
    bench.kill()
    bench.clock.advance(28 * HOUR)
    assert bench.deliver() == [b"m"]


# -- random sequences


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 60))])
def test_random_sequences_deliver_each_message_once(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver each message once and never early, or never if it was withdrawn."""
    dice = random.Random(seed)
    monkeypatch.setattr(timer_log, "FOLD_ENTRIES", dice.choice([5, 50, 1 << 15]))
    monkeypatch.setattr(timer_message_store, "_MAX_LOADED", dice.choice([3, 1 << 14]))
    bench = TimerBench(tmp_path)
    sent: dict[bytes, Message] = {}
    withdrawn: set[bytes] = set()
    for turn in range(80):
        action = dice.choice(
            ["send", "send", "deliver", "deliver", "recall", "kill", "restart", "checkpoint", "rescue", "jump"]
        )
        if action == "send":
            for message in bench.send(
                *(b"%d-%d" % (turn, n) for n in range(dice.randint(1, 20))),
                after=dice.choice([0.0, 0.5, 30.0, 90.0, 2 * HOUR, 3 * DAY]) * dice.uniform(0.5, 1),
                queue_id=dice.randrange(2),
            ):
                sent[message.body] = message
        elif action == "deliver":
            bench.clock.advance(dice.choice([0.1, 1.0, 60.0, HOUR, DAY]))
            bench.deliver()
        elif action == "recall" and sent:
            message = sent[dice.choice(sorted(sent))]
            status = bench.recall(message)
            known = any(record.body == message.body for record in bench.delivered())
            assert known == (status is not RecallStatus.WITHDRAWN), status
            if status is RecallStatus.WITHDRAWN:
                withdrawn.add(message.body)
        elif action == "kill":
            bench.kill()
        elif action == "restart":
            bench.restart()
        elif action == "checkpoint":
            bench.checkpoint()
        elif action == "rescue":
            bench.store.flush()
            bench.core.rescue.relocate_before(dice.randint(0, bench.store.max_physical_offset))
        elif action == "jump":
            bench.clock.advance(dice.choice([-100.0, -HOUR, -DAY]))
    bench.clock.now += 100 * DAY
    bench.deliver()
    delivered = bench.delivered()
    assert len({record.body for record in delivered}) == len(delivered), "something came twice"
    assert {record.body for record in delivered} == set(sent) - withdrawn
    bench.close()


def test_hour_constants_agree() -> None:
    assert HOUR_MS == HOUR * 1000
