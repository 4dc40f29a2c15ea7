"""Test failed messages: the retry topic by the retry ladder, or the dead letter queue."""

from __future__ import annotations

import numpy as np
import pytest

from raymq.actors.broker.core.redelivery.retry import MoveToDlq, Quarantined, RetryLater
from raymq.actors.errors import GroupNotFound, MessageExpired, MessageNotFound, PermissionDenied, StoreFull
from raymq.actors.protocol import RedriveStatus
from raymq.client import Message
from raymq.storage.cooperative_steps import run_steps
from raymq.storage.records.record import encode
from raymq.storage.tables.group_config import GroupConfig
from raymq.storage.tables.topic_config import TopicConfig
from tests.unit.actors.bench import HOST, Bench


def test_failed_message_is_retried_then_dead_letter(bench: Bench) -> None:
    core = bench.core
    core.ensure_group("g")
    placed = bench.append(Message("t", b"bad", tags="x", keys=["k"], properties={"a": "b"}))
    original = bench.records("t")[0]
    place = int(placed.physical_offsets[0])
    waits = []
    for _ in range(2):
        core.redelivery.send_back("g", place, 0, 2)
        waited = 0.0
        while not core.schedule.deliver_due().delivered:
            bench.clock.advance(0.5)
            waited += 0.5
        waits.append(waited)
        place = bench.records("%RETRY%g")[-1].physical_offset
    core.redelivery.send_back("g", place, 0, 2)
    assert waits == [10.0, 30.0]
    retried = bench.records("%RETRY%g")
    assert [record.reconsume_times for record in retried] == [1, 2]
    dead = bench.records("%DLQ%g")
    assert len(dead) == 1
    for record in [*retried, *dead]:
        assert record.unique_key == original.unique_key
        assert record.properties["ORIGIN_MESSAGE_ID"] == original.message_id
        assert record.properties["RETRY_TOPIC"] == "t"
        assert (record.tags, record.keys, record.properties["a"]) == ("x", ["k"], "b")
        assert record.born_timestamp_ms == original.born_timestamp_ms
    assert dead[0].properties["RAYMQ_DLQ_REASON"] == "failed 3 times"


def test_send_back_with_level_or_directly_to_dead_letters(bench: Bench) -> None:
    bench.core.ensure_group("g")
    placed = bench.append(Message("t", b"x"))
    bench.core.redelivery.send_back("g", int(placed.physical_offsets[0]), 1, None)
    bench.clock.advance(1)
    assert bench.core.schedule.deliver_due().delivered == 1
    bench.core.redelivery.send_back("g", int(placed.physical_offsets[0]), -1, None)
    assert bench.bodies("%DLQ%g") == [b"x"]


def test_send_back_of_unknown_group_or_message_raises(bench: Bench) -> None:
    with pytest.raises(GroupNotFound):
        bench.core.redelivery.send_back("nobody", 0, 0)
    bench.core.ensure_group("g")
    bench.append(Message("t", b"x"))
    with pytest.raises(MessageNotFound):
        bench.core.redelivery.send_back("g", 17, 0)


def append_message(bench: Bench) -> int:
    return int(bench.append(Message("t", b"x")).physical_offsets[0])


def test_group_without_retry_queues_drops_failed_messages(bench: Bench) -> None:
    bench.store.group_configs.put(GroupConfig("g", retry_queues=0))
    assert not bench.core.ensure_group("g")
    assert bench.core.redelivery.send_back("g", append_message(bench), 0) is None
    assert [topic for topic in bench.core.topics.all() if topic.startswith("%")] == []


def test_retries_use_all_retry_queues_of_group(bench: Bench) -> None:
    bench.store.group_configs.put(GroupConfig("g", retry_queues=3))
    bench.core.ensure_group("g")
    place = append_message(bench)
    for _ in range(60):
        bench.core.redelivery.send_back("g", place, 1)
    bench.clock.advance(1)
    assert bench.core.schedule.deliver_due().delivered == 60
    assert bench.store.queues("%RETRY%g") == [0, 1, 2]


def test_unwritable_retry_topic_raises_permission_denied(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.store.topic_configs.put(TopicConfig("%RETRY%g", 1, 1, perm=4))
    with pytest.raises(PermissionDenied):
        bench.core.redelivery.send_back("g", append_message(bench), 0)


def test_message_sent_to_retry_topic_may_be_dead_letter(bench: Bench) -> None:
    core = bench.core
    with pytest.raises(GroupNotFound):
        core.redelivery.dlq_for_resent("g", 1)
    core.ensure_group("g")
    assert core.redelivery.dlq_for_resent("g", 16) is None
    assert "%DLQ%g" not in core.topics
    assert core.redelivery.dlq_for_resent("g", 17) == ("%DLQ%g", "failed 17 times")
    assert core.redelivery.dlq_for_resent("g", 3, 2) == ("%DLQ%g", "failed 3 times")
    assert core.topics.get("%DLQ%g").write_queues == 1
    core.locks.lock("g", "x", [("t", 0)])
    assert core.redelivery.dlq_for_resent("g", 1) == ("%DLQ%g", "an ordered consumer gave up on it")


def largest_message(topic: str = "t") -> Message:
    """Make a message whose properties leave no space for one more."""
    return Message(topic, b"large", tags="x", properties={"p": "y" * (32_690 - 100)})


def test_retry_with_large_properties_drops_optional_ones(bench: Bench) -> None:
    """Cover fault 13.1: the retry of a message with large properties stopped all delay levels."""
    bench.core.ensure_group("g")
    room = 32_767 - len(largest_message().own_properties) - 43  # its unique key
    for size in range(0, room, 7):
        placed = bench.append(Message("t", b"%d" % size, tags="x", properties={"p": "y" * (32_590 + size)}))
        bench.core.redelivery.send_back("g", int(placed.physical_offsets[0]), 1)
    bench.clock.advance(1)
    bench.core.deliver_due()
    came = [record.body for record in bench.records("%RETRY%g")]
    dead = [record.body for record in bench.records("%DLQ%g")]
    assert sorted(came + dead, key=int) == [b"%d" % size for size in range(0, room, 7)]
    assert came
    assert dead
    for record in bench.records("%RETRY%g"):
        assert record.properties["RETRY_TOPIC"] == "t"
        assert "ORIGIN_MESSAGE_ID" in record.properties
    assert not bench.core.set_aside.notes()


def test_uncopyable_message_is_set_aside(bench: Bench) -> None:
    """Cover fault 13.4."""
    bench.core.ensure_group("g")
    record = encode("t", 0, b"x", b"p\x01" + b"\xff" * 20_000 + b"\x02", born_timestamp_ms=1, born_host=HOST)
    place = int(bench.store.append(record, np.array([len(record)], np.int32)).physical_offsets[0])
    for _ in range(2):
        decision = bench.core.redelivery.send_back("g", place, 0)
        assert isinstance(decision, Quarantined)
        assert "32767" in decision.reason
    assert [(note.duty, note.owner) for note in bench.core.set_aside.notes()] == [("retry", "g")]


@pytest.mark.parametrize("times", [2**31 - 1, -5, -(2**31)])
def test_forged_reconsume_times_are_counted_on(bench: Bench, times: int) -> None:
    """Cover fault 13.5: an invented number made every send-back fail."""
    bench.core.ensure_group("g")
    record = encode("t", 0, b"x", b"", born_timestamp_ms=1, born_host=HOST, reconsume_times=times)
    place = int(bench.store.append(record, np.array([len(record)], np.int32)).physical_offsets[0])
    decision = bench.core.redelivery.send_back("g", place, 0)
    assert decision == (RetryLater(3) if times < 0 else MoveToDlq(f"failed {(1 << 30) + 1} times"))


def test_retry_of_expired_message_is_noted_and_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover fault 13.8."""
    bench.core.ensure_group("g")
    place = append_message(bench)
    with monkeypatch.context() as patched:
        patched.setattr(type(bench.store._log), "min_offset", property(lambda _: place + 1))
        for _ in range(2):
            with pytest.raises(MessageExpired):
                bench.core.redelivery.send_back("g", place, 0)
    (note,) = bench.core.set_aside.notes()
    assert (note.duty, note.owner, note.physical_offset) == ("retry", "g", place)
    assert bench.core.set_aside.counts["retry"] == 1


def test_full_store_does_not_skip_retry(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.core.ensure_group("g")
    place = append_message(bench)

    def full() -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store._writer, "check_ready", full)
        with pytest.raises(StoreFull):
            bench.core.redelivery.send_back("g", place, 0)
    assert not bench.core.set_aside.notes()
    assert bench.core.redelivery.send_back("g", place, 0) == RetryLater(3)


def test_redrive_is_idempotent_after_retry_topic_recreation(bench: Bench) -> None:
    """Cover fault 13.29: redrive repeated one entry for ever."""
    core = bench.core
    core.ensure_group("g")
    for _ in range(3):
        core.redelivery.send_back("g", append_message(bench), -1)
    redrive = core.dead_letters.redrive_steps
    assert run_steps(redrive("g", [0, 1, 2], force=False, dry_run=False)) == [RedriveStatus.REDRIVEN] * 3
    core.topics.delete("%RETRY%g")
    assert run_steps(redrive("g", [0], force=False, dry_run=False)) == [RedriveStatus.REDRIVEN]
    assert run_steps(redrive("g", [0], force=False, dry_run=False)) == [RedriveStatus.ALREADY]
    assert bench.store.max_offset("%RETRY%g", 0) == 1


def test_redriven_entries_are_forgotten_with_their_copies(bench: Bench) -> None:
    """Cover fault 13.30."""
    core = bench.core
    core.ensure_group("g")
    rounds, each = 4, 6
    for number in range(rounds * each):
        place = int(bench.append(Message("t", b"%06d" % number * 8_000)).physical_offsets[0])
        core.redelivery.send_back("g", place, -1)
    entries = list(range(rounds * each))
    assert run_steps(core.dead_letters.redrive_steps("g", entries, force=False, dry_run=False)) == [
        RedriveStatus.REDRIVEN
    ] * len(entries)
    assert run_steps(core.dead_letters.redrive_steps("g", entries, force=False, dry_run=False)) == [
        RedriveStatus.ALREADY
    ] * len(entries)
    bench.store.flush()
    bench.clock.advance(100 * 3_600)
    assert bench.store.delete_expired(asked=True).log_files
    low, high = bench.store.min_offset("%RETRY%g", 0), bench.store.max_offset("%RETRY%g", 0)
    assert 0 < low < high
    run_steps(core.dead_letters.redrive_steps("g", entries[-1:], force=False, dry_run=False))
    (seen,) = core.dead_letters._seen.values()
    assert len(seen.entries) == high - low


def test_failure_reason_comes_with_retry_and_dead_letter(bench: Bench) -> None:
    core = bench.core
    core.ensure_group("g")
    place = int(bench.append(Message("t", b"x", properties={"own": "1"})).physical_offsets[0])
    core.redelivery.send_back("g", place, 1, 1, "ValueError: first\x01RAYMQ_DIED_IN\x02 \ud800")
    bench.clock.advance(1)
    core.schedule.deliver_due()
    [retried] = bench.records("%RETRY%g")
    assert retried.properties["RAYMQ_FAILURE"] == "ValueError: first RAYMQ_DIED_IN  \ufffd"
    assert "RAYMQ_DIED_IN" not in retried.properties
    core.redelivery.send_back("g", retried.physical_offset, 0, 1, "y" * 10_000)
    [dead] = bench.records("%DLQ%g")
    assert dead.properties["RAYMQ_DLQ_REASON"] == "y" * 512
    assert "RAYMQ_FAILURE" not in dead.properties
    assert dead.properties["own"] == "1"


def test_failure_reason_is_of_last_try_only(bench: Bench) -> None:
    core = bench.core
    core.ensure_group("g")
    place = int(bench.append(Message("t", b"x")).physical_offsets[0])
    for failure in ("ValueError: first", ""):
        core.redelivery.send_back("g", place, 1, 9, failure)
        bench.clock.advance(1)
        core.schedule.deliver_due()
        last = bench.records("%RETRY%g")[-1]
        assert last.properties.get("RAYMQ_FAILURE", "") == failure
        place = last.physical_offset


@pytest.mark.parametrize("left", range(0, 1_200, 40))
def test_message_without_space_drops_failure_reason(bench: Bench, left: int) -> None:
    core = bench.core
    core.ensure_group("g")
    own = "v" * (32_767 - 80 - left)
    place = int(bench.append(Message("t", b"x", properties={"own": own})).physical_offsets[0])
    core.redelivery.send_back("g", place, 1, 1, "z" * 512)
    bench.clock.advance(1)
    core.schedule.deliver_due()
    copies = bench.records("%RETRY%g") or bench.records("%DLQ%g")
    assert [copy.properties["own"] for copy in copies] == [own]
    if copies[0].topic == "%RETRY%g":
        core.redelivery.send_back("g", copies[0].physical_offset, 0, 1, "z" * 512)
        assert [copy.properties["own"] for copy in bench.records("%DLQ%g")] == [own]


def test_redriven_message_has_no_failure_reason(bench: Bench) -> None:
    core = bench.core
    core.ensure_group("g")
    place = int(bench.append(Message("t", b"x")).physical_offsets[0])
    core.redelivery.send_back("g", place, -1, None, "ValueError: bad")
    run_steps(core.dead_letters.redrive_steps("g", [0], force=False, dry_run=False))
    [again] = bench.records("%RETRY%g")
    assert (again.reconsume_times, "RAYMQ_FAILURE" in again.properties) == (0, False)
