"""Test the offsets in a stream's checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from raymq.actors.errors import ProtocolError
from raymq.actors.protocol import MessageQueue
from raymq.spark_bridge.batch_plan import BatchPlan
from raymq.spark_bridge.spark4_source.checkpoint_offsets import (
    end_offset,
    initial_offset,
    offset_after,
    plan_between,
    previous_plan,
)

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
ORIGINS = {("t", "a"): ("", 2**62 + 1), ("t", "b"): ("made", 4)}


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept


def test_end_offset_of_a_batch_starts_the_next_batch() -> None:
    first = BatchPlan({A0: (5, 10), B0: (0, 0)}, ORIGINS)
    second = BatchPlan({A0: (10, 12), B0: (0, 7)}, ORIGINS)
    start, end = through_json(end_offset(first, ())), through_json(end_offset(second, first.ranges))
    assert previous_plan(start) == BatchPlan({A0: (10, 10), B0: (0, 0)}, ORIGINS)
    assert plan_between(start, end) == second


def test_new_queue_begins_at_its_planned_offset() -> None:
    first = BatchPlan({A0: (5, 10)}, ORIGINS)
    second = BatchPlan({A0: (10, 10), A1: (3, 8)}, ORIGINS)
    end = through_json(end_offset(second, first.ranges))
    assert plan_between(end_offset(first, ()), end) == second
    third = BatchPlan({A0: (10, 11), A1: (8, 9)}, ORIGINS)
    assert plan_between(end, end_offset(third, second.ranges)) == third


@pytest.mark.parametrize("begin", [12, 0], ids=["expired", "made anew"])
def test_batch_begins_after_skipped_offsets(begin: int) -> None:
    start = end_offset(BatchPlan({A0: (5, 10), B0: (0, 3)}, ORIGINS), ())
    plan = BatchPlan({A0: (begin, begin + 2), B0: (3, 4)}, ORIGINS)
    end = through_json(offset_after(plan, start, [A0, B0]))
    assert plan_between(start, end) == plan
    following = BatchPlan({A0: (begin + 2, begin + 3), B0: (4, 4)}, ORIGINS)
    assert plan_between(end, offset_after(following, end, [A0, B0])) == following


def test_two_batches_can_be_read_as_one() -> None:
    plans = [BatchPlan({A0: (0, 4)}, ORIGINS), BatchPlan({A0: (4, 9)}, ORIGINS), BatchPlan({A0: (9, 20)}, ORIGINS)]
    assert plan_between(end_offset(plans[0], ()), end_offset(plans[2], [A0])).ranges == {A0: (4, 20)}


def test_topic_no_longer_read_is_left_out() -> None:
    other = MessageQueue("gone", "a", 0)
    start = end_offset(BatchPlan({A0: (0, 4), other: (0, 9)}, {**ORIGINS, ("gone", "a"): ("", 1)}), ())
    end = end_offset(BatchPlan({A0: (4, 5)}, ORIGINS), [A0, other])
    assert plan_between(start, end) == BatchPlan({A0: (4, 5)}, ORIGINS)


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"ends": [], "new": {}, "origins": {}},
        {"ends": {"t": {"a": {"zero": 1}}}, "new": {}, "origins": {}},
        {"ends": {"t": {"a": {"0": -1}}}, "new": {}, "origins": {}},
        {"ends": {}, "new": {}, "origins": {"t": {"a": [1]}}},
    ],
)
def test_malformed_checkpoint_offset_is_refused(offset: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="checkpoint"):
        previous_plan(offset)


def test_batch_with_end_before_start_is_refused() -> None:
    first, second = end_offset(BatchPlan({A0: (0, 4)}, ORIGINS), ()), end_offset(BatchPlan({A0: (4, 9)}, ORIGINS), [A0])
    with pytest.raises(ProtocolError, match="checkpoint"):
        plan_between(second, first)


def test_rerun_of_first_batch_keeps_its_start() -> None:
    # Spark asks for the initial offset again when it runs the first batch again.
    begun, later = BatchPlan({A0: (4, 4)}, ORIGINS), BatchPlan({A0: (90, 90)}, ORIGINS)
    start = through_json(initial_offset(begun))
    end = through_json(offset_after(BatchPlan({A0: (4, 20)}, ORIGINS), start, begun.ranges))
    for each in (start, through_json(initial_offset(later))):
        assert plan_between(each, end).ranges == {A0: (4, 20)}
    following = through_json(offset_after(BatchPlan({A0: (20, 25)}, ORIGINS), end, [A0]))
    assert plan_between(end, following).ranges == {A0: (20, 25)}
