"""Administration of many groups and queues is done in steps, and what others change meanwhile is not lost."""

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


def steps_of(steps: Steps[Any]) -> tuple[int, Any]:
    """How many times others had their turn, and the result."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return turns, end.value
        turns += 1


def told(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"groupName": f"g{number}", **more} for number in range(count)]


def test_many_groups_are_made_in_steps(bench: Bench) -> None:
    """Ten thousand, as many as one request may name, held the loop for half a second."""
    groups = bench.core.group_settings
    turns, is_new = steps_of(groups.change_steps(told(400, retryMaxTimes=3)))
    assert turns >= 18
    assert is_new
    bench.crash()
    groups = bench.core.group_settings
    assert {config.retry_max_times for config in groups.all().values()} == {3}
    assert len(groups.all()) == 400
    assert "%RETRY%g399" in bench.core.topics
    assert steps_of(groups.change_steps(told(400, retryMaxTimes=3))) == (turns, False)
    assert steps_of(groups.change_steps(told(1))) == (0, False)


def test_all_are_looked_at_before_one_is_made(bench: Bench) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    for bad in ({"groupName": "bad name"}, {"groupName": "g", "groupRetryPolicy": {"a": deep}}):
        with pytest.raises(InvalidInput):
            run_steps(bench.core.group_settings.change_steps([*told(100), bad]))
        assert bench.core.group_settings.all() == {}


def test_what_somebody_else_changes_between_two_steps_stays(bench: Bench) -> None:
    groups = bench.core.group_settings
    groups.change(told(100))
    steps = groups.change_steps(told(100, retryMaxTimes=3))
    next(steps)
    groups.change([{"groupName": "g99", "consumeEnable": False}])
    run_steps(steps)
    assert (groups.get("g99").consume_enable, groups.get("g99").retry_max_times) == (False, 3)


def test_of_several_changes_of_a_group_the_last_one_counts(bench: Bench) -> None:
    groups = bench.core.group_settings
    groups.change([{"groupName": "g", "retryMaxTimes": number} for number in range(100)])
    assert groups.get("g").retry_max_times == 99


@pytest.fixture
def wide(tmp_path: Path, no_waiting_for_the_disk: None) -> Bench:
    """A topic of many queues, each with a message that group g has consumed."""
    bench = Bench(tmp_path / "wide")
    bench.core.topics.create("t", QUEUES)
    bench.core.topics.create("u", QUEUES)
    bench.core.group_settings.change([{"groupName": "g"}, {"groupName": "h"}])
    for queue_id in range(QUEUES):
        bench.append(Message("t", b"x"), queue_id=queue_id)
        bench.core.offsets.commit("g", "t", queue_id, 1)
    return bench


def consumption_of(bench: Bench) -> ConsumeStats:
    return ConsumeStats(bench.core, ClientRegistry(FakeClock()), Statistics())


def test_what_a_wide_topic_holds_is_read_in_steps(wide: Bench) -> None:
    turns, ranges = steps_of(wide.core.range_steps("t"))
    assert turns >= 9
    assert [(number, each.min_offset, each.max_offset) for number, each in ranges.items()] == [
        (number, 0, 1) for number in range(QUEUES)
    ]
    turns, spans = steps_of(consumption_of(wide).time_span_steps("g", "t"))
    assert turns >= 9
    assert list(spans) == [MessageQueue("t", "broker-a", number) for number in range(QUEUES)]
    for reading in (wide.core.range_steps("t"), consumption_of(wide).time_span_steps("g", "t")):
        next(reading)
        wide.core.topics.delete("t")
        with pytest.raises(TopicNotFound):
            run_steps(reading)
        wide.core.topics.create("t", QUEUES)
        for queue_id in range(QUEUES):
            wide.append(Message("t", b"x"), queue_id=queue_id)


def test_offsets_are_given_to_another_group_in_steps(wide: Bench) -> None:
    """Those of 21 topics of 1,024 queues held the loop for 0.6 s."""
    offsets = wide.store.consumer_offsets
    turns, _ = steps_of(consumption_of(wide).copy_offsets_steps("g", "h", None))
    assert turns >= 3
    assert offsets.of("h", "t") == offsets.of("g", "t") == dict.fromkeys(range(QUEUES), 1)
    assert all(offsets.is_reset_pending("h", "t", queue_id) for queue_id in range(QUEUES))


def test_they_are_those_of_when_it_was_asked(wide: Bench) -> None:
    steps = consumption_of(wide).copy_offsets_steps("g", "h", "t")
    next(steps)
    wide.core.offsets.commit("g", "t", QUEUES - 1, 0, forward_only=False)
    run_steps(steps)
    assert wide.store.consumer_offsets.get("h", "t", QUEUES - 1) == 1


def test_a_topic_or_a_group_that_goes_meanwhile(wide: Bench) -> None:
    steps = consumption_of(wide).copy_offsets_steps("g", "h", None)
    next(steps)
    wide.core.topics.delete("t")
    run_steps(steps)
    assert wide.store.consumer_offsets.of("h", "t") == {}
    for queue_id in range(QUEUES):
        wide.core.offsets.commit("g", "u", queue_id, 0)
    steps = consumption_of(wide).copy_offsets_steps("g", "h", None)
    next(steps)
    wide.core.group_settings.delete("h", with_offsets=True)
    with pytest.raises(GroupNotFound):
        run_steps(steps)
