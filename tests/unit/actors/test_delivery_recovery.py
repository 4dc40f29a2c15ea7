"""Test copies that are in the log but not recorded: each start finds them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raymq.actors.broker.core.copies import property_scan
from raymq.actors.broker.core.delay import schedule_message_service
from raymq.actors.broker.core.delay.delivery_recovery import find_delivered_copies
from raymq.actors.naming import dlq_topic
from raymq.client import Message
from raymq.storage.delay_levels import SCHEDULE_TOPIC
from raymq.storage.files.file_calls import replaced
from raymq.storage.records import property_names as names
from raymq.storage.records.record import encode, encode_properties
from raymq.storage.tables.topic_config import TopicConfig
from raymq.storage.timers.timer_entry import EntryKind
from tests.faulty_calls import FaultyCalls
from tests.unit.actors.bench import Bench
from tests.unit.actors.pop_bench import PopBench


class Killed(BaseException):
    """Simulate the death of the process."""


def all_bodies(bench: Bench) -> list[bytes]:
    return sorted(body for queue_id in bench.store.queues("t") for body in bench.bodies("t", queue_id))


def deliver_all(bench: Bench) -> list[bytes]:
    while bench.core.deliver_due().delivered:
        pass
    return all_bodies(bench)


def die_before_recording(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver everything due, and die before the delivery is recorded."""

    def commit(*_: object) -> None:
        raise Killed

    end = bench.core.timers._end

    def end_drops(entries: Any, kind: EntryKind, places: Any) -> None:
        if kind is EntryKind.DELIVERED:
            raise Killed
        end(entries, kind, places)

    with monkeypatch.context() as patch:
        patch.setattr(bench.store.delay_offsets, "commit", commit)
        patch.setattr(bench.core.timers, "_end", end_drops)
        with pytest.raises(Killed):
            bench.core.deliver_due()
    bench.core.timers.log.close()
    bench.crash()


def stop_cleanly(bench: Bench) -> None:
    """Stop as `BrokerService.stop` does, and open again."""
    bench.core.timers.close()
    bench.core.schedule.close()
    bench.store.close()
    bench.open()


@pytest.mark.parametrize("stops", [1, 2])
def test_copies_found_at_start_are_known_after_clean_stop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stops: int
) -> None:
    """Guard against a second delivery of unrecorded copies after a clean stop.

    The stop recorded that no copy before the log's end was unknown.
    """
    bench.core.topics.create("gone", 1)
    for number in range(6):
        bench.append(Message("gone" if number == 2 else "t", b"%d" % number, delay_level=1), delayed=True)
    bench.core.topics.delete("gone")
    bench.clock.advance(2)
    die_before_recording(bench, monkeypatch)
    for _ in range(stops):
        stop_cleanly(bench)
    assert deliver_all(bench) == [b"0", b"1", b"3", b"4", b"5"]
    stop_cleanly(bench)
    assert deliver_all(bench) == [b"0", b"1", b"3", b"4", b"5"]


def test_start_after_clean_stop_does_not_search_log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against reading the log from its first message at each start.

    A level that had delivered nothing yet had no recorded position.
    """
    bench.append(Message("t", b"later", delay_level=4), delayed=True)
    bench.append(*(Message("t", b"now") for _ in range(10)))
    stop_cleanly(bench)
    log_ends: list[int] = []

    def recording_search(store: object, log_end: int) -> object:
        log_ends.append(log_end)
        return find_delivered_copies(store, log_end)  # type: ignore[arg-type]

    monkeypatch.setattr(schedule_message_service, "find_delivered_copies", recording_search)
    stop_cleanly(bench)
    assert log_ends == []
    bench.crash()
    bench.clock.advance(40)
    assert deliver_all(bench)[0] == b"later"
    assert len(all_bodies(bench)) == 11
    assert bench.store.queues(SCHEDULE_TOPIC) == [3]


def test_start_after_kill_searches_only_end_of_log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard against reading everything stored since a level's first message at a start.

    A level of two hours that had delivered nothing had no recorded position.
    """
    monkeypatch.setattr(schedule_message_service, "_NOTE_BYTES", 10_000)
    bench.append(Message("t", b"later", delay_level=4), delayed=True)
    for _ in range(30):
        bench.append(*(Message("t", b"x" * 100) for _ in range(10)))
        bench.append(Message("t", b"later", delay_level=4), delayed=True)
        bench.core.deliver_due()
    assert bench.store.delay_offsets.get(4) == 0
    log_ends: list[int] = []

    def recording_search(store: object, log_end: int) -> object:
        log_ends.append(log_end)
        return find_delivered_copies(store, log_end)  # type: ignore[arg-type]

    monkeypatch.setattr(schedule_message_service, "find_delivered_copies", recording_search)
    bench.crash()
    assert bench.store.max_physical_offset > 40_000
    assert [bench.store.max_physical_offset - each <= 15_000 for each in log_ends] == [True]
    bench.clock.advance(40)
    die_before_recording(bench, monkeypatch)
    assert [body for body in deliver_all(bench) if body == b"later"] == [b"later"] * 31, "each once"


@pytest.mark.parametrize("waits", ["a level", "a time"])
def test_copy_in_other_queue_is_recognised_after_kill(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """Guard against a second delivery after a kill if the topic lost queues."""
    bench.core.topics.create("t", 8)
    bench.store.topic_configs.put(TopicConfig("t", 8, 8))
    for number in range(6):
        when = {"delay_level": 1} if waits == "a level" else {"deliver_at": bench.clock.now + 1.0}
        bench.append(Message("t", b"%d" % number, **when), queue_id=number, delayed=True)  # type: ignore[arg-type]
    bench.store.topic_configs.put(TopicConfig("t", 4, 4))
    bench.clock.advance(2)
    die_before_recording(bench, monkeypatch)
    assert len(all_bodies(bench)) == 6
    assert deliver_all(bench) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("another", [False, True])
def test_dead_letters_of_several_queues_are_written_once(tmp_path: Path, another: bool) -> None:
    """Guard against duplicate dead letters when the journals had no room but the log had.

    A start knew only the newest of these dead letters.
    """
    bench = PopBench(tmp_path, queues=4)
    bench.core.ensure_group("g")
    bench.core.topics.create(dlq_topic("g"), 1)
    for queue_id in range(4):
        bench.send(b"dies %d" % queue_id, queue_id=queue_id)
    bench.receive(32, invisible=1.0, maximum=0)
    bench.clock.advance(2)
    with replaced(FaultyCalls("write", 1, errno.ENOSPC, lasting=True)):
        for _ in range(3):
            bench.pop.sweep()
    if another:  # a dead letter that comes from no pop delivery, such as a push consumer's
        properties = encode_properties({names.TAGS: "x"})
        letter = encode(dlq_topic("g"), 0, b"z", properties, born_timestamp_ms=1, born_host=("10.0.0.2", 1))
        bench.core.append(dlq_topic("g"), 0, memoryview(letter), np.array([len(letter)], np.int32))
    bench.kill()
    bench.clock.advance(2)
    bench.pop.sweep()
    expected = [b"dies %d" % queue_id for queue_id in range(4)]
    assert sorted(letter.body for letter in bench.dead_letters()) == expected + [b"z"] * another
    assert not bench.store.in_flight.queues
    bench.close()


@pytest.mark.parametrize("most", [1, 3, 512])
def test_copies_are_found_among_records_that_only_mention_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Cover bodies with the name of the property, and forged copies."""
    monkeypatch.setattr(property_scan, "_MOST_FOUND", most)
    mention = f"{names.DELIVERED_FROM}\x010:0".encode()
    for number in range(20):
        bench.append(Message("t", b"%d" % number, deliver_at=bench.clock.now + 1.0), delayed=True)
        bench.append(Message("t", mention + b" %d" % number))
        properties = encode_properties({names.DELIVERED_FROM: f"0:{number}"})
        forged = encode("t", 0, b"forged", properties, born_timestamp_ms=1, born_host=("10.0.0.2", 1))
        bench.core.append("t", 0, memoryview(forged), np.array([len(forged)], np.int32))
    bench.clock.advance(1)
    begin = bench.store.max_physical_offset
    bench.append(Message("t", mention))
    die_before_recording(bench, monkeypatch)
    found = list(find_delivered_copies(bench.store, 0))
    assert [copy.origin.offset for copy in found] == list(range(20))
    assert [copy.physical_offset > begin for copy in found] == [True] * 20
