"""Test the plan of a stream's next batch: every message once, and an error for lost ones."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.actors.wire.commands.stream_plan_commands import QueueBounds, TopicBounds
from raymq.client import MessageQueue
from raymq.client.errors import RayMQError
from raymq.spark_bridge.batch_plan import (
    BatchPlan,
    RunEnd,
    StreamBroken,
    allocate_messages,
    next_plan,
    rotation_after,
    verify_plan,
)

A0, A1, B0 = (MessageQueue("t", f"broker-{broker}", number) for broker, number in (("a", 0), ("a", 1), ("b", 0)))
U0 = MessageQueue("u", "broker-a", 0)

Held = Mapping[MessageQueue, tuple[int, int] | QueueBounds]


def broker_answers(held: Held, topic_id: str = "first", epoch: int = 7) -> dict[tuple[str, str], TopicBounds]:
    """Return what brokers answer for {queue: (first offset, the one behind the last)}."""
    by_origin: dict[tuple[str, str], dict[int, QueueBounds]] = {}
    for queue, bounds in held.items():
        of = by_origin.setdefault((queue.topic, queue.broker), {})
        of[queue.queue_id] = bounds if isinstance(bounds, QueueBounds) else QueueBounds(*bounds)
    return {origin: TopicBounds(topic_id, epoch, queues) for origin, queues in by_origin.items()}


def plan_read_to(ends: Mapping[MessageQueue, int], topic_id: str = "first", goal: RunEnd | None = None) -> BatchPlan:
    """Build the plan of a batch that has read up to these offsets."""
    origins = {(queue.topic, queue.broker): (topic_id, 7) for queue in ends}
    return BatchPlan({queue: (0, end) for queue, end in ends.items()}, origins, goal)


@pytest.mark.parametrize(
    ("previous", "held", "start_offsets", "expected"),
    [
        pytest.param(None, {A0: (3, 9), B0: (0, 0)}, None, {A0: (3, 9), B0: (0, 0)}, id="earliest: what is there"),
        pytest.param(None, {A0: (3, 9)}, {A0: 9}, {A0: (9, 9)}, id="latest: what comes after"),
        pytest.param(None, {A0: (0, 9), B0: (0, 2)}, {A0: 5}, {A0: (5, 9), B0: (0, 2)}, id="a queue since the start"),
        pytest.param(plan_read_to({A0: 5}), {A0: (0, 9)}, {A0: 1}, {A0: (5, 9)}, id="goes on, whatever start says"),
        pytest.param(plan_read_to({A0: 9}), {A0: (9, 9)}, None, {A0: (9, 9)}, id="nothing new, and all before expired"),
        pytest.param(plan_read_to({A0: 5}), {A0: (5, 9)}, None, {A0: (5, 9)}, id="expired exactly up to here"),
        pytest.param(
            plan_read_to({A0: 5}),
            {A0: (0, 6), A1: (0, 4), B0: (0, 1)},
            {A0: 2},
            {A0: (5, 6), A1: (0, 4), B0: (0, 1)},
            id="a new queue and a new broker begin with their first message",
        ),
        pytest.param(
            plan_read_to({A0: 5}), {A0: (0, 6), U0: (0, 8)}, {U0: 8}, {A0: (5, 6), U0: (8, 8)}, id="a new topic"
        ),
        pytest.param(
            plan_read_to({A0: 5}), {A0: (0, 6), U0: (2, 8)}, None, {A0: (5, 6), U0: (2, 8)}, id="a new one, earliest"
        ),
        pytest.param(plan_read_to({A0: 5, U0: 3}), {A0: (0, 6)}, None, {A0: (5, 6)}, id="a topic that is read no more"),
        pytest.param(
            plan_read_to({A0: 5, A1: 4}),
            {A0: (0, 6), A1: QueueBounds(0, 4, readable=False)},
            None,
            {A0: (5, 6), A1: (4, 4)},
            id="a queue that was taken away when all of it was read",
        ),
        pytest.param(
            plan_read_to({A0: 5}),
            {A0: (0, 6), A1: QueueBounds(0, 4, readable=False)},
            None,
            {A0: (5, 6)},
            id="a queue that nobody may read",
        ),
        pytest.param(plan_read_to({A0: 5}), {A0: QueueBounds(0, 6, kept=5)}, None, {A0: (5, 6)}, id="a cut behind it"),
    ],
)
def test_next_plan_continues_each_queue_at_its_last_offset(
    previous: BatchPlan | None,
    held: Held,
    start_offsets: dict[MessageQueue, int] | None,
    expected: dict[MessageQueue, tuple[int, int]],
) -> None:
    plan = next_plan(4, previous, broker_answers(held), start_offsets)
    assert plan.ranges == expected
    assert plan.goal is None
    assert plan.origins == {(queue.topic, queue.broker): ("first", 7) for queue in held}


@pytest.mark.parametrize(
    ("previous", "answers", "start_offsets", "said"),
    [
        pytest.param(plan_read_to({A0: 5}), broker_answers({A0: (6, 9)}), None, "expired", id="expired"),
        pytest.param(plan_read_to({A0: 5}), broker_answers({A0: (9, 9)}), None, "expired", id="all of it expired"),
        pytest.param(None, broker_answers({A0: (6, 9)}), {A0: 5}, "expired", id="expired since the start was fixed"),
        pytest.param(
            plan_read_to({A0: 5}),
            broker_answers({A0: (0, 9), A1: (2, 3)}),
            None,
            "expired",
            id="a new queue's first message",
        ),
        pytest.param(plan_read_to({A0: 5}), broker_answers({A0: (0, 4)}), None, "ends at 4", id="shorter"),
        pytest.param(None, broker_answers({A0: (0, 4)}), {A0: 5}, "ends at 4", id="shorter than the start"),
        pytest.param(
            plan_read_to({A0: 5}), broker_answers({A0: (0, 9)}, "second"), None, "recreated", id="another of that name"
        ),
        pytest.param(
            plan_read_to({A0: 5}),
            broker_answers({A0: QueueBounds(0, 9, kept=4)}),
            None,
            "power failure",
            id="lost messages",
        ),
        pytest.param(
            plan_read_to({A0: 5, A1: 5}),
            broker_answers({A0: (0, 9)}),
            None,
            "does not exist any more",
            id="a queue is gone",
        ),
        pytest.param(
            plan_read_to({A0: 5, B0: 5}),
            broker_answers({A0: (0, 9)}),
            None,
            "does not exist any more",
            id="a broker is gone",
        ),
        pytest.param(
            plan_read_to({A0: 5}),
            broker_answers({A0: QueueBounds(0, 9, readable=False)}),
            None,
            "4 messages of it",
            id="taken away unread",
        ),
    ],
)
def test_lost_messages_raise_stream_broken(
    previous: BatchPlan | None,
    answers: dict[tuple[str, str], TopicBounds],
    start_offsets: dict[MessageQueue, int] | None,
    said: str,
) -> None:
    with pytest.raises(StreamBroken, match=said):
        next_plan(4, previous, answers, start_offsets)


@pytest.mark.parametrize(
    ("previous", "answers", "start_offsets", "expected", "skipped"),
    [
        pytest.param(plan_read_to({A0: 5}), broker_answers({A0: (7, 9)}), None, {A0: (7, 9)}, {A0: 2}, id="expired"),
        pytest.param(
            None, broker_answers({A0: (6, 9)}), {A0: 5}, {A0: (6, 9)}, {A0: 1}, id="expired since the start was fixed"
        ),
        pytest.param(plan_read_to({A0: 5}), broker_answers({A0: (0, 4)}), None, {A0: (4, 4)}, {A0: 0}, id="shorter"),
        pytest.param(
            plan_read_to({A0: 5}), broker_answers({A0: (0, 9)}, "second"), None, {A0: (0, 9)}, {A0: 0}, id="recreated"
        ),
        pytest.param(
            plan_read_to({A0: 5}),
            broker_answers({A0: QueueBounds(0, 9, kept=4)}),
            None,
            {A0: (4, 9)},
            {A0: 0},
            id="power failure",
        ),
        pytest.param(
            plan_read_to({A0: 5, A1: 5}),
            broker_answers({A0: (0, 9)}),
            None,
            {A0: (5, 9)},
            {A1: 0},
            id="a queue is gone",
        ),
        pytest.param(
            plan_read_to({A0: 5, B0: 5}),
            broker_answers({A0: (0, 9)}),
            None,
            {A0: (5, 9)},
            {B0: 0},
            id="a broker is gone",
        ),
        pytest.param(
            plan_read_to({A0: 5}),
            broker_answers({A0: QueueBounds(0, 9, readable=False)}),
            None,
            {A0: (9, 9)},
            {A0: 4},
            id="taken away",
        ),
    ],
)
def test_skip_losses_skips_lost_messages_and_reports_them(
    previous: BatchPlan | None,
    answers: dict[tuple[str, str], TopicBounds],
    start_offsets: dict[MessageQueue, int] | None,
    expected: dict[MessageQueue, tuple[int, int]],
    skipped: dict[MessageQueue, int],
) -> None:
    plan = next_plan(4, previous, answers, start_offsets, skip_losses=True)
    assert plan.ranges == expected
    assert {queue: each.messages for queue, each in plan.skipped.items()} == skipped
    assert BatchPlan.unpack(plan.pack()) == plan
    now = {
        origin: each._replace(queues={number: queue._replace(kept=None) for number, queue in each.queues.items()})
        for origin, each in answers.items()
    }
    following = next_plan(5, plan, now, start_offsets, skip_losses=True)
    assert following.skipped == plan.skipped, "what was skipped once is kept in mind and not skipped again"
    assert all(start == end for start, end in following.ranges.values())


def test_skipped_messages_add_up_over_batches() -> None:
    first = next_plan(1, plan_read_to({A0: 5}), broker_answers({A0: (7, 9)}), None, skip_losses=True)
    second = next_plan(2, first, broker_answers({A0: (20, 21)}), None, skip_losses=True)
    assert second.skipped[A0].messages == 2 + 11
    assert "begins at 20" in second.skipped[A0].reason


def test_deleted_topic_is_skipped_until_it_is_recreated() -> None:
    previous = plan_read_to({A0: 5, U0: 3})
    away = next_plan(1, previous, broker_answers({U0: (0, 4)}), {A0: 2}, skip_losses=True, skip_topics={"t"})
    assert away.ranges == {U0: (3, 4)}
    assert away.topics == {"t", "u"}
    assert "does not exist" in away.skipped[A0].reason
    again = broker_answers({A0: (0, 2)}, "second") | broker_answers({U0: (0, 4)})
    assert next_plan(2, away, again, {A0: 2}, skip_losses=True).ranges == {A0: (0, 2), U0: (4, 4)}


def test_verify_plan_accepts_old_plan_whose_messages_remain() -> None:
    plan = BatchPlan(
        {A0: (5, 8), A1: (3, 3), B0: (0, 0)}, {("t", "broker-a"): ("first", 7), ("t", "broker-b"): ("first", 7)}
    )
    verify_plan(plan, broker_answers({A0: (5, 20), A1: (9, 9)}))  # nothing is to be read of A1 and B0
    verify_plan(plan, broker_answers({A0: QueueBounds(0, 20, kept=8, readable=False)}))


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        pytest.param(broker_answers({A0: (6, 20)}), "expired", id="expired in part"),
        pytest.param(broker_answers({A0: (8, 20)}), "expired", id="expired"),
        pytest.param(broker_answers({A0: (0, 7)}), "ends at 7", id="lost in part"),
        pytest.param(
            broker_answers({A0: QueueBounds(0, 20, kept=7)}), "power failure", id="lost in part, and others came"
        ),
        pytest.param(broker_answers({A0: (0, 20)}, "second"), "recreated", id="another of that name"),
        pytest.param(broker_answers({A1: (0, 20)}), "does not exist any more", id="the queue is gone"),
        pytest.param({}, "does not exist any more", id="the broker is gone"),
    ],
)
def test_verify_plan_raises_for_lost_messages(answers: dict[tuple[str, str], TopicBounds], said: str) -> None:
    with pytest.raises(StreamBroken, match=said):
        verify_plan(BatchPlan({A0: (5, 8)}, {("t", "broker-a"): ("first", 7)}), answers)


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "b"), pytest.param("", "b", id="RocketMQ made it"), pytest.param("a", "", id="repaired")],
)
def test_topic_with_another_id_raises_stream_broken(first: str, second: str) -> None:
    with pytest.raises(StreamBroken, match="recreated"):
        next_plan(1, plan_read_to({A0: 5}, first), broker_answers({A0: (0, 9)}, second), None)


def test_start_offsets_hold_only_for_their_topic_and_epoch() -> None:
    # A query may start later than its start was fixed, or get another topic.
    start_offsets, start_epochs = {A0: 5, U0: 5}, {("t", "broker-a"): ("first", 7), ("u", "broker-a"): ("first", 7)}
    held = {A0: (0, 9), U0: (0, 9)}
    assert next_plan(0, None, broker_answers(held), start_offsets, start_epochs=start_epochs).ranges == {
        A0: (5, 9),
        U0: (5, 9),
    }
    with pytest.raises(StreamBroken, match="recreated"):
        next_plan(0, None, broker_answers(held, "second"), start_offsets, start_epochs=start_epochs)
    with pytest.raises(StreamBroken, match="power failure"):
        next_plan(
            0,
            None,
            broker_answers({A0: QueueBounds(0, 9, kept=4), U0: (0, 9)}),
            start_offsets,
            start_epochs=start_epochs,
        )
    # A topic that was read before continues at its last offset; its start offset is not used.
    previous = plan_read_to({A0: 7}, "second")
    only = {("t", "broker-a"): TopicBounds("second", 7, {0: QueueBounds(0, 9)})}
    assert next_plan(1, previous, only, start_offsets, start_epochs=start_epochs).ranges == {A0: (7, 9)}
    with pytest.raises(StreamBroken, match="topic u was deleted and recreated"):
        next_plan(1, previous, only | broker_answers({U0: (0, 9)}, "third"), start_offsets, start_epochs=start_epochs)


def test_bounded_run_reads_messages_present_at_its_begin() -> None:
    first = next_plan(0, None, broker_answers({A0: (0, 10), B0: (0, 4)}), None, 7, "run-1")
    assert first.goal == RunEnd("run-1", {A0: 10, B0: 4})
    assert not first.is_last_of("run-1")
    # Messages, a queue and a broker have come since.
    later = broker_answers({A0: (0, 99), A1: (0, 9), B0: (0, 99)})
    second = next_plan(1, first, later, None, 7, "run-1")
    assert {queue: end for queue, (_, end) in second.ranges.items()} == {A0: 10, A1: 0, B0: 4}
    assert second.is_last_of("run-1")
    assert not second.is_last_of("run-2")
    third = next_plan(2, second, later, None, None, "run-2")
    assert {queue: end for queue, (_, end) in third.ranges.items()} == {A0: 99, A1: 9, B0: 99}
    assert third.is_last_of("run-2")
    assert next_plan(3, third, later, None).goal is None


queues = st.builds(MessageQueue, st.sampled_from("tu"), st.sampled_from("ab"), st.integers(0, 3))
held_now = st.dictionaries(queues, st.integers(0, 1 << 40), max_size=8)


@given(held_now, st.integers(1, 1 << 41), st.integers(0, 99))
def test_allocation_uses_the_limit_exactly(backlogs: dict[MessageQueue, int], max_messages: int, turn: int) -> None:
    taken = allocate_messages(backlogs, max_messages, turn)
    assert taken.keys() == backlogs.keys()
    assert all(0 <= taken[queue] <= backlogs[queue] for queue in backlogs)
    assert sum(taken.values()) == min(max_messages, sum(backlogs.values()))


@given(st.dictionaries(queues, st.integers(1, 1 << 20), min_size=1, max_size=8), st.integers(1, 10))
def test_each_backlogged_queue_is_read_within_queue_count_turns(
    backlogs: dict[MessageQueue, int], max_messages: int
) -> None:
    read = dict.fromkeys(backlogs, 0)
    for turn in range(len(backlogs)):
        for queue, count in allocate_messages(
            backlogs, max_messages, turn
        ).items():  # the backlogs stay equal: as much arrives as is read
            read[queue] += count
    assert all(read.values())


def test_allocation_is_proportional_to_backlogs() -> None:
    assert allocate_messages({A0: 1_000, A1: 3_000, B0: 0}, 400, 0) == {A0: 100, A1: 300, B0: 0}


@given(st.data())
def test_successive_plans_read_every_message_once_in_order(data: st.DataObject) -> None:
    # Messages arrive between batches, and each batch is planned from its packed predecessor.
    ends: dict[MessageQueue, int] = {}
    read: dict[MessageQueue, int] = {}
    plan: BatchPlan | None = None
    for batch in range(data.draw(st.integers(1, 8))):
        for queue in data.draw(st.lists(queues, min_size=1, max_size=4)):
            ends[queue] = ends.get(queue, 0) + data.draw(st.integers(0, 50))
        max_messages = data.draw(st.none() | st.integers(1, 60))
        answers = broker_answers({queue: (0, end) for queue, end in ends.items()})
        plan = next_plan(batch, None if plan is None else BatchPlan.unpack(plan.pack()), answers, None, max_messages)
        for queue, (start, end) in plan.ranges.items():
            assert start == read.get(queue, 0)
            read[queue] = end
        assert max_messages is None or sum(end - start for start, end in plan.ranges.values()) <= max_messages
    answers = broker_answers({queue: (0, end) for queue, end in ends.items()})
    assert {queue: end for queue, (_, end) in next_plan(99, plan, answers, None).ranges.items()} == ends


plans = st.builds(
    BatchPlan,
    st.dictionaries(queues, st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 62))),
    st.dictionaries(st.tuples(st.sampled_from("tu"), st.text()), st.tuples(st.text(), st.integers(0, 9))),
    st.none() | st.builds(RunEnd, st.text(), held_now),
    st.text(),
)


@given(plans)
def test_plan_survives_pack_and_unpack(plan: BatchPlan) -> None:
    assert BatchPlan.unpack(plan.pack()) == plan


@pytest.mark.parametrize(
    "packed",
    [b"", b"\xc1", b"\x95\x01\x80\x90\xc0\xa0", b"\x95\x02\x90\x90\xc0\xa0", b"\x95\x02\x80\x91\x00\xc0\xa0", b"\x90"],
)
def test_unpack_rejects_malformed_plans(packed: bytes) -> None:
    with pytest.raises(RayMQError, match="plan"):
        BatchPlan.unpack(packed)


def test_rotation_after_plan_prevents_starvation_of_a_queue() -> None:
    # With as many messages a batch as queues, a queue that got more in each batch took the whole remainder.
    queues = [MessageQueue("t", "broker-a", number) for number in range(4)]
    plan = plan_read_to(dict.fromkeys(queues, 0))
    for batch in range(12):
        held = {queues[0]: (0, 10_000), queues[1]: (0, 1 + batch), queues[2]: (0, 1), queues[3]: (0, 1)}
        plan = next_plan(rotation_after(plan, 4), plan, broker_answers(held), None, max_messages=4)
    assert [plan.ranges[queue][1] for queue in queues[2:]] == [1, 1]
