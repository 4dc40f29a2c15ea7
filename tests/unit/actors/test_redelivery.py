"""Failed messages: to the retry topic by the ladder, or to the dead letters."""

from __future__ import annotations

import pytest

from raymq.actors.errors import GroupNotFound, MessageNotFound, PermissionDenied
from raymq.client import Message
from raymq.storage.group_config import GroupConfig
from raymq.storage.topic_config import TopicConfig
from tests.unit.actors.bench import Bench


def test_retries_then_the_dead_letter_queue(bench: Bench) -> None:
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


def test_an_explicit_level_and_straight_to_the_dead_letters(bench: Bench) -> None:
    bench.core.ensure_group("g")
    placed = bench.append(Message("t", b"x"))
    bench.core.redelivery.send_back("g", int(placed.physical_offsets[0]), 1, None)
    bench.clock.advance(1)
    assert bench.core.schedule.deliver_due().delivered == 1
    bench.core.redelivery.send_back("g", int(placed.physical_offsets[0]), -1, None)
    assert bench.bodies("%DLQ%g") == [b"x"]


def test_send_back_of_what_is_not_there(bench: Bench) -> None:
    with pytest.raises(GroupNotFound):
        bench.core.redelivery.send_back("nobody", 0, 0)
    bench.core.ensure_group("g")
    bench.append(Message("t", b"x"))
    with pytest.raises(MessageNotFound):
        bench.core.redelivery.send_back("g", 17, 0)


def place_of_a_message(bench: Bench) -> int:
    return int(bench.append(Message("t", b"x")).physical_offsets[0])


def test_a_group_without_retry_queues_drops_what_fails(bench: Bench) -> None:
    bench.store.group_configs.put(GroupConfig("g", retry_queues=0))
    assert not bench.core.ensure_group("g")
    assert bench.core.redelivery.send_back("g", place_of_a_message(bench), 0) is None
    assert [topic for topic in bench.core.topics.all() if topic.startswith("%")] == []


def test_retries_use_all_of_the_groups_retry_queues(bench: Bench) -> None:
    bench.store.group_configs.put(GroupConfig("g", retry_queues=3))
    bench.core.ensure_group("g")
    place = place_of_a_message(bench)
    for _ in range(60):
        bench.core.redelivery.send_back("g", place, 1)
    bench.clock.advance(1)
    assert bench.core.schedule.deliver_due().delivered == 60
    assert bench.store.queues("%RETRY%g") == [0, 1, 2]


def test_a_retry_topic_that_may_not_be_written(bench: Bench) -> None:
    bench.core.ensure_group("g")
    bench.store.topic_configs.put(TopicConfig("%RETRY%g", 1, 1, perm=4))
    with pytest.raises(PermissionDenied):
        bench.core.redelivery.send_back("g", place_of_a_message(bench), 0)


def test_what_clients_send_to_the_retry_topic_themselves(bench: Bench) -> None:
    core = bench.core
    with pytest.raises(GroupNotFound):
        core.redelivery.dead_letters_of_resent("g", 1)
    core.ensure_group("g")
    assert core.redelivery.dead_letters_of_resent("g", 16) is None
    assert "%DLQ%g" not in core.topics
    assert core.redelivery.dead_letters_of_resent("g", 17) == ("%DLQ%g", "failed 17 times")
    assert core.redelivery.dead_letters_of_resent("g", 3, 2) == ("%DLQ%g", "failed 3 times")
    assert core.topics.get("%DLQ%g").write_queues == 1
    core.locks.lock("g", "x", [("t", 0)])
    assert core.redelivery.dead_letters_of_resent("g", 1) == ("%DLQ%g", "an ordered consumer gave it up")
