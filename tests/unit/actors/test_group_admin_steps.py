"""Test that administration of many groups and queues runs in steps and loses no concurrent change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.groups.consume_stats import ConsumeStats
from raymq.actors.broker.core.statistics import Statistics
from raymq.actors.errors import GroupNotFound, InvalidInput, TopicNotFound
from raymq.actors.protocol import MessageQueue
from raymq.client import Message
from raymq.storage.cooperative_steps import Steps, run_steps
from tests.unit.actors.bench import Bench
from tests.unit.actors.clock import FakeClock

QUEUES = 200


def count_turns(steps: Steps[Any]) -> tuple[int, Any]:
    """Run the steps; return how many turns others had, and the result."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return turns, end.value
        turns += 1


def group_changes(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"groupName": f"g{number}", **more} for number in range(count)]


def test_groups_are_created_in_steps(bench: Bench) -> None:
    """Guard against a stop of half a second by ten thousand groups in one request."""
    groups = bench.core.group_settings
    turns, is_new = count_turns(groups.change_steps(group_changes(400, retryMaxTimes=3)))
    assert turns >= 18
    assert is_new
    bench.crash()
    groups = bench.core.group_settings
    assert {config.retry_max_times for config in groups.all().values()} == {3}
    assert len(groups.all()) == 400
    assert "%RETRY%g399" in bench.core.topics
    assert count_turns(groups.change_steps(group_changes(400, retryMaxTimes=3))) == (turns, False)
    assert count_turns(groups.change_steps(group_changes(1))) == (0, False)


def test_all_groups_are_validated_before_creation(bench: Bench) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    for bad in ({"groupName": "bad name"}, {"groupName": "g", "groupRetryPolicy": {"a": deep}}):
        with pytest.raises(InvalidInput):
            run_steps(bench.core.group_settings.change_steps([*group_changes(100), bad]))
        assert bench.core.group_settings.all() == {}


def test_concurrent_group_change_between_steps_is_kept(bench: Bench) -> None:
    groups = bench.core.group_settings
    groups.change(group_changes(100))
    steps = groups.change_steps(group_changes(100, retryMaxTimes=3))
    next(steps)
    groups.change([{"groupName": "g99", "consumeEnable": False}])
    run_steps(steps)
    assert (groups.get("g99").consume_enable, groups.get("g99").retry_max_times) == (False, 3)


def test_last_change_of_group_wins(bench: Bench) -> None:
    groups = bench.core.group_settings
    groups.change([{"groupName": "g", "retryMaxTimes": number} for number in range(100)])
    assert groups.get("g").retry_max_times == 99


@pytest.fixture
def wide(tmp_path: Path, no_waiting_for_the_disk: None) -> Bench:
    """Open a broker with many queues, each with a message that group g has consumed."""
    bench = Bench(tmp_path / "wide")
    bench.core.topics.create("t", QUEUES)
    bench.core.topics.create("u", QUEUES)
    bench.core.group_settings.change([{"groupName": "g"}, {"groupName": "h"}])
    for queue_id in range(QUEUES):
        bench.append(Message("t", b"x"), queue_id=queue_id)
        bench.core.offsets.commit("g", "t", queue_id, 1)
    return bench


def make_consume_stats(bench: Bench) -> ConsumeStats:
    return ConsumeStats(bench.core, ClientRegistry(FakeClock()), Statistics())


def test_topic_ranges_and_time_spans_are_read_in_steps(wide: Bench) -> None:
    turns, ranges = count_turns(wide.core.range_steps("t"))
    assert turns >= 9
    assert [(number, each.min_offset, each.max_offset) for number, each in ranges.items()] == [
        (number, 0, 1) for number in range(QUEUES)
    ]
    turns, spans = count_turns(make_consume_stats(wide).time_span_steps("g", "t"))
    assert turns >= 9
    assert list(spans) == [MessageQueue("t", "broker-a", number) for number in range(QUEUES)]
    for reading in (wide.core.range_steps("t"), make_consume_stats(wide).time_span_steps("g", "t")):
        next(reading)
        wide.core.topics.delete("t")
        with pytest.raises(TopicNotFound):
            run_steps(reading)
        wide.core.topics.create("t", QUEUES)
        for queue_id in range(QUEUES):
            wide.append(Message("t", b"x"), queue_id=queue_id)


def test_offsets_are_copied_to_group_in_steps(wide: Bench) -> None:
    """Guard against a loop stop of 0.6 s by 21 topics of 1,024 queues."""
    offsets = wide.store.consumer_offsets
    turns, _ = count_turns(make_consume_stats(wide).copy_offsets_steps("g", "h", None))
    assert turns >= 3
    assert offsets.of("h", "t") == offsets.of("g", "t") == dict.fromkeys(range(QUEUES), 1)
    assert all(offsets.is_reset_pending("h", "t", queue_id) for queue_id in range(QUEUES))


def test_copied_offsets_are_of_request_time(wide: Bench) -> None:
    steps = make_consume_stats(wide).copy_offsets_steps("g", "h", "t")
    next(steps)
    wide.core.offsets.commit("g", "t", QUEUES - 1, 0, forward_only=False)
    run_steps(steps)
    assert wide.store.consumer_offsets.get("h", "t", QUEUES - 1) == 1


def test_topic_or_group_deleted_during_offset_copy(wide: Bench) -> None:
    steps = make_consume_stats(wide).copy_offsets_steps("g", "h", None)
    next(steps)
    wide.core.topics.delete("t")
    run_steps(steps)
    assert wide.store.consumer_offsets.of("h", "t") == {}
    for queue_id in range(QUEUES):
        wide.core.offsets.commit("g", "u", queue_id, 0)
    steps = make_consume_stats(wide).copy_offsets_steps("g", "h", None)
    next(steps)
    wide.core.group_settings.delete("h", with_offsets=True)
    with pytest.raises(GroupNotFound):
        run_steps(steps)
