"""Test open transactions of a broker's core: halves, ends, checks and recovery."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raymq.actors.broker.core.broker_runtime_info import broker_runtime_info
from raymq.actors.broker.core.copies.record_copy import join
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.broker.core.transactions import open_halves
from raymq.actors.broker.core.transactions.half_message import (
    GIVEN_UP_QUEUE,
    HALF_QUEUE,
    OP_QUEUE,
    HalfPosition,
    operation_record,
)
from raymq.actors.errors import (
    GroupNotFound,
    InvalidInput,
    MessageIllegal,
    MessageNotFound,
    RayMQError,
    TopicNotFound,
    TransactionEnded,
)
from raymq.actors.naming import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from raymq.actors.protocol import TransactionOutcome
from raymq.client import Message
from raymq.storage.records import property_names as names
from raymq.storage.records.message_limits import MAX_PROPERTIES_BYTES
from raymq.storage.records.record import SYS_FLAG_TRANSACTION_COMMIT, encode, encode_properties
from tests.unit.actors.bench import CONFIG, HOST, encoded
from tests.unit.actors.clock import FakeClock
from tests.unit.actors.transaction_bench import GROUP, TOPIC, TransactionBench

COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, TransactionOutcome.UNKNOWN


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TransactionBench]:
    made = TransactionBench(tmp_path)
    made.core.topics.create(TOPIC, 2)
    yield made
    made.store.close()


def test_half_is_invisible_until_its_commit(bench: TransactionBench) -> None:
    half = bench.prepare(b"paid", queue_id=1, **{names.TAGS: "a", names.KEYS: "k"})
    assert bench.bodies(TOPIC, 1) == []
    bench.end(half, COMMIT)
    [record] = bench.records(TOPIC, 1)
    assert (record.body, record.tags, record.keys) == (b"paid", "a", ["k"])
    assert record.sys_flag == SYS_FLAG_TRANSACTION_COMMIT
    assert record.prepared_transaction_offset == half.physical_offset
    assert names.REAL_TOPIC not in record.properties
    assert record.properties[names.TRAN_MSG] == "true"
    assert record.properties[names.TRANSACTION_ID] == record.unique_key
    assert (TOPIC, 1) in bench.arrivals


def test_half_record_has_rocketmqs_format(bench: TransactionBench) -> None:
    bench.prepare()
    [half] = bench.records(HALF_TOPIC)
    assert half.sys_flag == 0
    assert half.properties[names.REAL_TOPIC] == TOPIC
    assert half.properties[names.REAL_QID] == "0"
    assert half.properties[names.TRANSACTION_ID] == half.unique_key


def test_rollback_makes_nothing_visible(bench: TransactionBench) -> None:
    bench.end(bench.prepare(), ROLLBACK)
    assert bench.bodies(TOPIC) == []
    assert bench.open_offsets() == []


def test_each_end_is_in_an_operation_record(bench: TransactionBench) -> None:
    for outcome in (COMMIT, ROLLBACK):
        bench.end(bench.prepare(), outcome)
    assert [(each.body, each.tags) for each in bench.records(OP_HALF_TOPIC)] == [(b"0,", "d"), (b"1,", "d")]


def test_unknown_changes_nothing(bench: TransactionBench) -> None:
    half = bench.prepare()
    bench.end(half, UNKNOWN)
    assert bench.open_offsets() == [0]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("first", "second"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
def test_first_decision_counts(
    bench: TransactionBench, first: TransactionOutcome, second: TransactionOutcome, restarted: bool
) -> None:
    half = bench.prepare()
    bench.end(half, first)
    if restarted:
        bench.crash()
    bench.end(half, first)
    with pytest.raises(TransactionEnded, match=first.value):
        bench.end(half, second)
    assert bench.bodies(TOPIC) == ([b"half"] if first is COMMIT else [])


@pytest.mark.parametrize(
    ("half", "group", "text"),
    [
        (HalfPosition(0, 0), "other", "producer group"),
        (HalfPosition(0, 7), GROUP, "commit log offset"),
        (HalfPosition(9, 0), GROUP, "may be lost"),
    ],
)
def test_end_of_another_half_is_refused(bench: TransactionBench, half: HalfPosition, group: str, text: str) -> None:
    bench.prepare()
    with pytest.raises(RayMQError, match=text):
        bench.end(half, COMMIT, group)
    assert bench.open_offsets() == [0]


@pytest.mark.parametrize("name", [names.DELAY, names.TIMER_DELIVER_MS])
def test_delayed_half_is_refused(bench: TransactionBench, name: str) -> None:
    with pytest.raises(MessageIllegal, match="delay"):
        bench.prepare(**{name: "3"})


def test_end_after_immunity_time_counts_only_as_an_answer(bench: TransactionBench) -> None:
    half = bench.prepare(**{names.CHECK_IMMUNITY_TIME: "10"})
    bench.clock.now += 11
    with pytest.raises(TransactionEnded, match="immunity"):
        bench.end(half, COMMIT)
    bench.end(half, COMMIT, from_check=True)
    assert bench.bodies(TOPIC) == [b"half"]


def test_open_halves_survive_a_crash(bench: TransactionBench) -> None:
    halves = [bench.prepare(b"%d" % i) for i in range(5)]
    bench.end(halves[1], COMMIT)
    bench.end(halves[3], ROLLBACK)
    bench.crash()
    assert bench.open_offsets() == [0, 2, 4]
    for half in halves:
        if half.queue_offset in (0, 2, 4):
            bench.end(half, COMMIT)
    assert bench.bodies(TOPIC) == [b"1", b"0", b"2", b"4"]


def test_commit_whose_operation_record_is_torn_off_counts(bench: TransactionBench) -> None:
    half = bench.prepare()
    bench.end(half, COMMIT)
    bench.tear_off_last_record()
    assert bench.bodies(TOPIC) == [b"half"]
    assert bench.open_offsets() == []
    assert bench.records(OP_HALF_TOPIC) == []
    bench.core.transactions.step()
    assert [each.body for each in bench.records(OP_HALF_TOPIC)] == [b"0,"]
    bench.end(half, COMMIT)
    with pytest.raises(TransactionEnded):
        bench.end(half, ROLLBACK)
    assert bench.bodies(TOPIC) == [b"half"]


def test_forged_commit_does_not_end_a_half(bench: TransactionBench) -> None:
    half = bench.prepare(b"secret")
    records, sizes = encoded(Message(TOPIC, b"forged"))
    forged = bytearray(records)
    forged[36:40] = SYS_FLAG_TRANSACTION_COMMIT.to_bytes(4, "big")
    bench.store.append(bytes(forged), sizes)
    bench.crash()
    assert bench.open_offsets() == [half.queue_offset]


def test_progress_is_stored_as_rocketmqs_consumer_offsets(bench: TransactionBench) -> None:
    halves = [bench.prepare() for _ in range(3)]
    bench.end(halves[0], COMMIT)
    bench.end(halves[2], COMMIT)
    bench.store.flush()
    bench.core.transactions.save()
    offsets = bench.store.consumer_offsets
    assert offsets.get(TRANSACTION_GROUP, *HALF_QUEUE) == 1
    assert offsets.get(TRANSACTION_GROUP, *OP_QUEUE) == 1
    bench.end(halves[1], ROLLBACK)
    bench.store.flush()
    bench.core.transactions.save()
    assert offsets.get(TRANSACTION_GROUP, *HALF_QUEUE) == 3
    assert offsets.get(TRANSACTION_GROUP, *OP_QUEUE) == 3


def test_progress_is_not_stored_before_the_log_is_durable(bench: TransactionBench) -> None:
    bench.store.flush()
    bench.end(bench.prepare(), COMMIT)
    bench.core.transactions.save()
    assert bench.store.consumer_offsets.get(TRANSACTION_GROUP, *HALF_QUEUE) is None


def test_producer_is_asked_after_the_time_and_then_at_intervals(bench: TransactionBench) -> None:
    bench.prepare()
    assert bench.ask() == []
    bench.clock.now += 6.5
    assert bench.ask() == [0]
    assert bench.ask() == []
    bench.clock.now += 30
    assert bench.ask() == [0]


def test_immunity_time_delays_the_first_check(bench: TransactionBench) -> None:
    """Test RocketMQ's #8311 and #544: immunity time counted as checks, or prevented them."""
    bench.prepare(**{names.CHECK_IMMUNITY_TIME: "100"})
    bench.clock.now += 99
    assert bench.ask() == []
    bench.clock.now += 1
    assert bench.ask() == [0]


def test_ended_half_is_not_asked_for(bench: TransactionBench) -> None:
    """Test RocketMQ's #8158: producers were asked about a half after its end."""
    bench.end(bench.prepare(), COMMIT)
    bench.clock.now += 100
    assert bench.ask() == []


def test_half_is_given_up_after_the_most_checks(bench: TransactionBench) -> None:
    half = bench.prepare(b"lost")
    for _ in range(15):
        bench.clock.now += 31
        assert bench.ask() == [0]
    bench.clock.now += 31
    assert bench.ask() == []
    [record] = bench.records(GIVEN_UP_QUEUE[0])
    assert record.body == b"lost"
    assert record.properties[names.TRANSACTION_CHECK_TIMES] == "15"
    assert bench.open_offsets() == []
    bench.crash()
    assert bench.open_offsets() == []
    with pytest.raises(TransactionEnded, match="given up"):
        bench.end(half, COMMIT)


def test_checks_that_reach_no_producer_do_not_count(bench: TransactionBench) -> None:
    """Test RocketMQ's #8311: a half was given up although nobody had been asked."""
    bench.prepare()
    for _ in range(100):
        bench.clock.now += 31
        assert list(bench.core.transactions.due_checks(set(), 10)) == []
    assert bench.open_offsets() == [0]
    assert bench.core.transactions.waiting_for() == {GROUP: 1}
    bench.core.transactions.wake({GROUP})
    assert bench.core.transactions.waiting_for() == {}
    assert bench.ask() == [0]


def test_commit_after_a_check_is_visible_once(bench: TransactionBench) -> None:
    """Test RocketMQ's #8158 and #10199: producer and check both committed a half."""
    half = bench.prepare()
    bench.clock.now += 31
    assert bench.ask() == [0]
    bench.end(half, COMMIT)
    bench.end(half, COMMIT, from_check=True)
    with pytest.raises(TransactionEnded):
        bench.end(half, ROLLBACK, from_check=True)
    assert bench.bodies(TOPIC) == [b"half"]
    bench.clock.now += 31
    assert bench.ask() == []


def test_commit_and_operation_record_are_one_append(bench: TransactionBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test RocketMQ's #10199: between commit and operation record a check found the half open."""
    half = bench.prepare()
    appends, append = [], bench.store.append

    def counted(records: Any, sizes: Any, *others: Any, **options: Any) -> Any:
        appends.append(len(sizes))
        return append(records, sizes, *others, **options)

    monkeypatch.setattr(bench.store, "append", counted)
    bench.end(half, COMMIT)
    assert appends == [2]


def test_checks_store_nothing(bench: TransactionBench) -> None:
    """Test RocketMQ's #1543: halves were stored anew for each check, until the disk was full."""
    bench.prepare()
    end = bench.store.max_physical_offset
    for _ in range(15):
        bench.clock.now += 31
        assert bench.ask() == [0]
        bench.core.transactions.step()
        bench.core.transactions.save()
    assert bench.store.max_physical_offset == end


def test_damaged_half_does_not_stop_the_others(bench: TransactionBench) -> None:
    """Test RocketMQ's #9500 and #1568: one failure stopped all checks and the progress."""
    halves = [bench.prepare(b"%d" % number * 100) for number in range(4)]
    bench.store.flush()
    path = next(iter((bench.directory / "commitlog").iterdir()))
    with path.open("r+b") as log:
        log.seek(halves[1].physical_offset + 100)
        log.write(b"damaged")
    bench.clock.now += 31
    assert [offset for _ in range(3) for offset in bench.ask()] == [0, 2, 3]
    for half in (halves[0], halves[2], halves[3]):
        bench.end(half, COMMIT)
    assert bench.bodies(TOPIC) == [b"0" * 100, b"2" * 100, b"3" * 100]
    bench.store.flush()
    bench.core.transactions.save()
    assert bench.store.consumer_offsets.get(TRANSACTION_GROUP, *HALF_QUEUE) == 4
    assert bench.core.set_aside.counts["transaction"] == 1


def test_old_half_is_given_up_unasked(bench: TransactionBench) -> None:
    bench.prepare()
    bench.clock.now += 73 * 3600
    assert bench.ask() == []
    assert bench.open_offsets() == []
    assert len(bench.records(GIVEN_UP_QUEUE[0])) == 1


def test_number_of_checks_survives_a_crash(bench: TransactionBench) -> None:
    bench.prepare()
    for _ in range(3):
        bench.clock.now += 31
        bench.ask()
    bench.store.flush()
    bench.core.transactions.save()
    bench.crash()
    [half] = bench.core.transactions.open_halves()
    assert half.asked == 3


def test_given_up_half_can_be_resumed_once(bench: TransactionBench) -> None:
    bench.prepare(b"late")
    bench.clock.now += 73 * 3600
    bench.ask()
    [given_up], _ = bench.core.transactions.given_up(0, 10)
    bench.core.transactions.resume(given_up.physical_offset)
    assert bench.core.transactions.given_up(0, 10)[0] == []
    with pytest.raises(InvalidInput):
        bench.core.transactions.resume(given_up.physical_offset)
    bench.crash()
    with pytest.raises(InvalidInput):
        bench.core.transactions.resume(given_up.physical_offset)
    [half] = bench.core.transactions.open_halves()
    assert half.asked == 0
    bench.end(half.position, COMMIT)
    assert bench.bodies(TOPIC) == [b"late"]


def test_moved_half_is_ended_by_its_old_position(bench: TransactionBench) -> None:
    half = bench.prepare(b"moved")
    bench.clock.now += 31
    bench.ask()
    bench.core.transactions.move_before(bench.store.max_physical_offset)
    assert bench.open_offsets() == [1]
    bench.crash()
    [moved] = bench.core.transactions.open_halves()
    assert (moved.named, moved.asked) == (half, 1)
    bench.end(half, COMMIT)
    assert bench.bodies(TOPIC) == [b"moved"]
    bench.end(half, COMMIT)
    assert bench.bodies(TOPIC) == [b"moved"]


def test_moved_half_whose_operation_record_is_torn_off_is_open_once(bench: TransactionBench) -> None:
    half = bench.prepare(b"moved")
    bench.core.transactions.move_before(bench.store.max_physical_offset)
    bench.tear_off_last_record()
    assert bench.open_offsets() == [1]
    bench.end(half, COMMIT)
    bench.core.transactions.step()
    bench.crash()
    assert bench.open_offsets() == []
    assert bench.bodies(TOPIC) == [b"moved"]


def test_half_of_a_deleted_topic_is_set_aside(bench: TransactionBench) -> None:
    bench.prepare()
    bench.core.topics.delete(TOPIC)
    bench.clock.now += 31
    assert bench.ask() == []
    assert bench.open_offsets() == []
    assert bench.core.set_aside.counts["transaction"] == 1


def test_append_of_a_half_by_our_own_client(bench: TransactionBench) -> None:
    message = Message(TOPIC, b"own")
    records, sizes = encoded(message)
    from raymq.storage.records.record import decode, encode

    record = decode(records)
    told = encode_properties({**record.properties, names.TRAN_MSG: "true", names.PGROUP: GROUP})
    half = encode(TOPIC, 1, b"own", told, born_timestamp_ms=1, born_host=HOST)
    packed, sizes = join([half])
    placed = bench.core.append(TOPIC, 1, memoryview(packed), np.asarray(sizes), delayed=True)
    assert placed.topic == HALF_TOPIC
    bench.end(HalfPosition(int(placed.queue_offsets[0]), int(placed.physical_offsets[0])), COMMIT)
    assert bench.bodies(TOPIC, 1) == [b"own"]


def test_end_of_an_unknown_half_after_restart_names_the_range(bench: TransactionBench) -> None:
    with pytest.raises(MessageNotFound):
        bench.end(HalfPosition(5, 0), COMMIT)


def test_waiting_half_is_asked_for_when_its_producer_connects(bench: TransactionBench) -> None:
    bench.prepare()
    bench.clock.now += 6.5
    assert list(bench.core.transactions.due_checks(set(), 10)) == []
    bench.core.transactions.wake({"other"})
    assert bench.ask() == []
    bench.core.transactions.wake({GROUP})
    assert bench.ask() == [0]
    bench.core.transactions.wake({GROUP})
    assert bench.ask() == []
    bench.clock.now += 30
    assert bench.ask() == [0]


def test_decision_about_a_lost_half_does_not_end_another_one(bench: TransactionBench) -> None:
    """Test a half at the place of one that a loss of power took."""
    half = bench.prepare(**{names.UNIQ_KEY: "second"})
    with pytest.raises(MessageNotFound, match="may be lost"):
        bench.end(half, COMMIT, unique_keys=frozenset({"first"}))
    bench.end(half, ROLLBACK, unique_keys=frozenset({"second"}))
    bench.crash()
    with pytest.raises(MessageNotFound, match="may be lost"):
        bench.end(half, ROLLBACK, unique_keys=frozenset({"first"}))
    assert bench.bodies(TOPIC) == []


def test_resumed_half_is_not_resumed_again_after_a_crash(bench: TransactionBench) -> None:
    given_up = bench.give_up(b"once")
    bench.core.transactions.resume(given_up.physical_offset)
    [half] = bench.core.transactions.open_halves()
    bench.core.transactions.move_before(bench.store.max_physical_offset)
    bench.end(half.position, COMMIT)
    bench.crash()
    assert bench.core.transactions.given_up(0, 10)[0] == []
    with pytest.raises(InvalidInput):
        bench.core.transactions.resume(given_up.physical_offset)
    assert bench.bodies(TOPIC) == [b"once"]


def test_half_of_a_deleted_topic_is_not_resumed(bench: TransactionBench) -> None:
    given_up = bench.give_up(b"old")
    bench.core.topics.delete(TOPIC)
    bench.core.topics.create(TOPIC, 2)
    with pytest.raises(TopicNotFound):
        bench.core.transactions.resume(given_up.physical_offset)
    assert bench.open_offsets() == []


def test_end_of_a_moved_half_can_be_repeated_after_a_crash(bench: TransactionBench) -> None:
    half = bench.prepare(b"moved")
    bench.core.transactions.move_before(bench.store.max_physical_offset)
    bench.end(half, COMMIT)
    bench.crash()
    bench.end(half, COMMIT)
    with pytest.raises(TransactionEnded, match="COMMIT"):
        bench.end(half, ROLLBACK)
    assert bench.bodies(TOPIC) == [b"moved"]


def test_operation_record_of_a_future_half_is_ignored(bench: TransactionBench) -> None:
    bench.prepare()
    record = operation_record([0, 1, 10**17], 1, HOST)
    packed, sizes = join([record])
    bench.store.append(packed, sizes)
    bench.crash()
    assert bench.open_offsets() == []
    half = bench.prepare(b"later")
    bench.end(half, COMMIT)
    assert bench.bodies(TOPIC) == [b"later"]


def test_moved_half_keeps_its_age(bench: TransactionBench) -> None:
    half = bench.prepare(**{names.CHECK_IMMUNITY_TIME: "999999999"})
    for _ in range(3):
        bench.clock.now += 71 * 3600 / 3
        bench.core.transactions.move_before(bench.store.max_physical_offset)
        bench.crash()
    assert [each.named for each in bench.core.transactions.open_halves()] == [half]
    bench.clock.now += 3600
    assert bench.ask() == []
    assert bench.open_offsets() == []
    assert len(bench.records(GIVEN_UP_QUEUE[0])) == 1


def test_half_without_room_for_a_copy_is_set_aside(bench: TransactionBench) -> None:
    """Test a half of RocketMQ whose properties are as long as they may be."""
    bench.store.flush()
    properties = {names.REAL_TOPIC: TOPIC, names.REAL_QID: "0", names.PGROUP: GROUP, names.UNIQ_KEY: "u"}
    properties["filler"] = "x" * (MAX_PROPERTIES_BYTES - len(encode_properties({**properties, "filler": ""})))
    full = encode(*HALF_QUEUE, b"full", encode_properties(properties), born_timestamp_ms=1, born_host=HOST)
    bench.store.append(*join([full]))
    half = bench.prepare(b"behind it")
    end = bench.store.max_physical_offset
    bench.core.transactions.move_before(end)
    assert bench.core.set_aside.counts["transaction"] == 1
    assert [each.named for each in bench.core.transactions.open_halves()] == [half]
    assert (bench.core.transactions.first_log_position() or 0) >= end


def test_halves_without_a_producer_do_not_delay_others(bench: TransactionBench) -> None:
    for _ in range(200):
        bench.prepare(**{names.PGROUP: "gone"})
    half = bench.prepare()
    bench.clock.now += 7
    found = list(bench.core.transactions.due_checks({GROUP}, 1))
    assert [each.position for each, _ in found] == [half]
    assert bench.core.transactions.waiting_for() == {"gone": 200}
    bench.core.transactions.wake({"gone"})
    assert len(list(bench.core.transactions.due_checks({GROUP, "gone"}, 1_000))) == 200


def test_one_turn_reads_a_limited_amount(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path, replace(CONFIG, commitlog_file_bytes=1 << 25))
    bench.core.topics.create(TOPIC, 1)
    for _ in range(5):
        bench.prepare(bytes(3 << 20))
        bench.core.transactions.step()
    bench.clock.now += 7
    assert [len(bench.ask()) for _ in range(4)] == [2, 2, 1, 0]
    end = bench.store.max_physical_offset
    bench.core.transactions.move_before(end)
    assert sum(half.position.physical_offset >= end for half in bench.core.transactions.open_halves()) == 2
    bench.store.close()


def test_old_open_half_does_not_make_starts_long(bench: TransactionBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_halves, "_READ_AT_START", 50)
    half = bench.prepare(b"old")
    for _ in range(49):
        bench.end(bench.prepare(), ROLLBACK)
    bench.core.transactions.step()
    assert bench.open_offsets() == [0]
    bench.end(bench.prepare(), ROLLBACK)
    bench.core.transactions.step()
    assert bench.open_offsets() == [51]
    bench.store.flush()
    bench.core.transactions.save()
    assert bench.store.consumer_offsets.get(TRANSACTION_GROUP, *HALF_QUEUE) == 51
    bench.crash()
    bench.end(half, COMMIT)
    assert bench.bodies(TOPIC) == [b"old"]


def test_memory_of_ended_halves_is_limited(bench: TransactionBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_halves, "_KEPT_OUTCOMES", 5)
    monkeypatch.setattr(open_halves, "_MOST_OPERATIONS", 4)
    halves = [bench.prepare(b"%d" % number) for number in range(20)]
    for half in halves[1:]:
        bench.end(half, COMMIT)
    kept = bench.core.transactions._halves
    assert len(kept.outcomes) == 5
    assert len(kept._operations) <= 5
    assert kept.first_operation() == 0
    bench.end(halves[1], COMMIT)
    with pytest.raises(TransactionEnded, match="COMMIT"):
        bench.end(halves[2], ROLLBACK)
    bench.store.flush()
    bench.core.transactions.save()
    bench.crash()
    assert bench.open_offsets() == [0]
    bench.end(halves[0], COMMIT)
    assert bench.core.transactions._halves.first_operation() == 20


def test_counts_of_lost_halves_do_not_count_for_others(bench: TransactionBench) -> None:
    bench.core.transactions._checks.count(1, 15)
    bench.crash()
    bench.prepare()
    bench.prepare()
    assert [half.asked for half in bench.core.transactions.open_halves()] == [0, 0]


@pytest.mark.parametrize("name", ["CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_other"])
def test_group_of_the_brokers_is_not_created(bench: TransactionBench, name: str) -> None:
    with pytest.raises(GroupNotFound, match="brokers themselves"):
        bench.core.make_group(name)
    with pytest.raises(InvalidInput, match="CID_RMQ_SYS_"):
        bench.core.group_settings.change([{"groupName": name}])


def test_runtime_figures_name_valid_producer_groups_only(bench: TransactionBench) -> None:
    for group in ("a", "a", "x\nfine: all", "y" * 300):
        bench.prepare(**{names.PGROUP: group})
    bench.clock.now += 7
    assert list(bench.core.transactions.due_checks(set(), 10)) == []
    figures = broker_runtime_info(bench.core, Statistics(), ClientRegistry(FakeClock(0.0)))
    told = {name: count for name, count in figures.items() if name.startswith("transactionsOf")}
    assert told == {"transactionsOf_a": "2", "transactionsOfOthers": "2"}
