"""Test a consumer's rules: tag expressions, listener answers, offsets in flight, and queue allocation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raymq.actors.protocol import MessageQueue
from raymq.actors.queue_allocation import average
from raymq.client import ConsumeResult, InvalidInput, Retry
from raymq.client.members.tag_filter import TagFilter, parse_subscriptions
from raymq.client.push.listener import ListenerRunner, read_answer
from raymq.client.push.process_queue import MAX_MESSAGES, MAX_SPAN, ProcessQueue
from raymq.storage.records.java_hash import tags_code
from tests.received_messages import levels_of, message
from tests.unit.client.invariants import check_process_queue

OK, LATER = ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", None), ("", None), ("a", {"a"}), ("a || b", {"a", "b"}), ("b||a||a", {"a", "b"}), (" ü ", {"ü"})],
)
def test_tag_expressions_are_parsed(expression: str, tags: set[str] | None) -> None:
    parsed = TagFilter.parse(expression)
    assert parsed.tags == tags
    assert parsed.codes == (None if tags is None else {tags_code(tag) for tag in tags})
    assert TagFilter.parse(parsed.expression) == parsed


@pytest.mark.parametrize("expression", ["a ||", "|| a", "a || * ", "||", "a\x01"])
def test_bad_tag_expressions_raise_invalid_input(expression: str) -> None:
    with pytest.raises(InvalidInput):
        TagFilter.parse(expression)
    with pytest.raises(InvalidInput):
        parse_subscriptions({})


def test_tags_with_equal_hashes_are_compared_by_text() -> None:
    parsed = TagFilter.parse("Aa")
    assert parsed.codes == {tags_code("BB")}
    assert parsed.passes("Aa")
    assert not parsed.passes("BB")
    assert not parsed.passes(None)


@pytest.mark.parametrize(
    ("answer", "levels"),
    [
        (OK, [None, None]),
        (LATER, [0, 0]),
        (None, [0, 0]),
        ("nonsense", [0, 0]),
        (True, [0, 0]),
        (Retry(5), [5, 5]),
        (Retry(-1), [-1, -1]),
        ([OK, LATER], [None, 0]),
        ((Retry(2), OK), [2, None]),
        ([OK], [0, 0]),
        ([OK, None], [None, 0]),
    ],
)
def test_listener_answers_become_delay_levels(answer: Any, levels: list[int | None]) -> None:
    assert levels_of(read_answer(answer, 2)) == levels


def test_listener_exception_fails_the_call() -> None:
    def fails(_: object) -> ConsumeResult:
        raise ValueError("no")

    assert levels_of(ListenerRunner(fails).call([object()] * 3)) == [0, 0, 0]  # type: ignore[list-item]


def test_coroutine_listener_is_awaited() -> None:
    async def later(messages: list[Any]) -> list[ConsumeResult]:
        return [OK if message else LATER for message in messages]

    runner = ListenerRunner(later)
    try:
        assert levels_of(runner.call([1, 0])) == [None, 0]  # type: ignore[list-item]
    finally:
        runner.close()


def test_commit_offset_waits_for_the_lowest_in_flight() -> None:
    process = ProcessQueue(MessageQueue("t", "a", 0), 10)
    for offset in (10, 11, 13):
        process.extend([message(offset)], [5])
    assert len(process.take(9)) == 3
    assert process.commit_offset == 10
    process.finish(11)
    assert process.commit_offset == 10
    process.finish(10)
    assert process.commit_offset == 13
    process.next_offset = 20
    process.finish(13)
    assert process.commit_offset == 20
    process.finish(13)
    check_process_queue(process)


def test_process_queue_reports_room_for_fetches() -> None:
    process = ProcessQueue(MessageQueue("t", "a", 0), 0)
    for offset in range(MAX_MESSAGES):
        assert process.room == MAX_MESSAGES - offset
        assert process.has_room == (process.room >= MAX_MESSAGES * 3 // 4)
        process.extend([message(offset)], [1])
    assert not process.room
    assert not process.has_room
    process.take(MAX_MESSAGES)
    for finished in range(MAX_MESSAGES // 4, MAX_MESSAGES):
        assert not process.has_room
        process.finish(finished)
    assert process.has_room
    process.next_offset = MAX_SPAN
    assert not process.has_room
    check_process_queue(process)


@given(st.lists(st.integers(0, 40), unique=True, max_size=40), st.randoms())
def test_commit_offset_never_passes_an_unfinished_message(offsets: list[int], rng: Any) -> None:
    process = ProcessQueue(MessageQueue("t", "a", 0), 0)
    waiting = sorted(offsets)
    for offset in waiting:
        process.extend([message(offset)], [1])
        process.take(1)
    rng.shuffle(waiting)
    before = process.commit_offset
    while waiting:
        process.finish(waiting.pop())
        check_process_queue(process)
        assert process.commit_offset >= before
        assert all(process.commit_offset <= offset for offset in waiting)
        before = process.commit_offset


@pytest.mark.parametrize("queues", [1, 4, 7, 16])
@pytest.mark.parametrize("members", [1, 2, 3, 5, 20])
def test_average_allocation_is_complete_and_even(queues: int, members: int) -> None:
    all_queues = [MessageQueue("t", f"broker-{i % 2}", i // 2) for i in range(queues)]
    names = [f"m{number:02d}" for number in range(members)]
    shares = [average(all_queues, names, name) for name in names]
    assert Counter(queue for share in shares for queue in share) == Counter(all_queues)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_unknown_member_gets_no_queue() -> None:
    assert average([MessageQueue("t", "a", 0)], ["x"], "y") == []
