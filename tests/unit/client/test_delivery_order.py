"""Test the order of delivery to a listener: concurrent, ordered, and with parked keys."""

from __future__ import annotations

from raymq.client.message import ReceivedMessage
from raymq.client.push.delivery_order import ConcurrentDelivery, OrderedDelivery
from raymq.client.push.process_queue import MAX_PARKED, MAX_SPAN_PARKED, ProcessQueue
from tests.received_messages import QUEUE, call_failures, message
from tests.unit.client.invariants import check_process_queue

RETRY_SECONDS = 1.0


def filled_queue(keys: str | int) -> ProcessQueue:
    process = ProcessQueue(QUEUE, 0)
    for offset, key in enumerate(keys if isinstance(keys, str) else " " * keys):
        process.extend([message(offset, key.strip())], [10])
    return process


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [each.queue_offset for each in messages]


def ordered(keys: str | int, *, limit: int | None = None, park: bool = False) -> OrderedDelivery:
    return OrderedDelivery(filled_queue(keys), RETRY_SECONDS, limit, park)


def test_concurrent_delivery_runs_all_and_returns_failures() -> None:
    order = ConcurrentDelivery(filled_queue(5))
    first, second = order.next_batch(2, 0.0), order.next_batch(2, 0.0)
    assert (offsets(first), offsets(second)) == ([0, 1], [2, 3])
    assert order.wait_seconds(0.0) == 0.0
    decision = order.done(first, call_failures(None, 4), 0.0)
    assert offsets(decision.finished) == [0]
    assert [(m.queue_offset, failure.level) for m, failure in decision.returned] == [(1, 4)]
    order.put_back(second)
    assert offsets(order.next_batch(9, 0.0)) == [2, 3, 4]
    assert order.wait_seconds(0.0) is None


def test_ordered_delivery_runs_one_call_and_repeats_failures() -> None:
    order = ordered(4)
    first = order.next_batch(2, 0.0)
    assert offsets(first) == [0, 1]
    assert order.next_batch(2, 0.0) == []
    assert order.wait_seconds(0.0) is None
    decision = order.done(first, call_failures(None, 0), 5.0)
    assert (decision.finished, decision.returned) == ([], [])
    assert order.wait_seconds(5.0) == RETRY_SECONDS
    assert order.next_batch(2, 5.9) == []
    again = order.next_batch(2, 6.0)
    assert [(m.queue_offset, m.reconsume_times) for m in again] == [(0, 1), (1, 1)]
    assert offsets(order.done(again, call_failures(None, None), 6.0).finished) == [0, 1]
    assert offsets(order.next_batch(9, 6.0)) == [2, 3]


def test_ordered_delivery_gives_up_at_the_limit_or_on_request() -> None:
    order = ordered(3, limit=2)
    now = 0.0
    for times in range(2):
        batch = order.next_batch(1, now)
        assert (offsets(batch), batch[0].reconsume_times) == ([0], times)
        assert order.done(batch, call_failures(0), now).returned == []
        now += RETRY_SECONDS
    last = order.next_batch(1, now)
    assert [(m.queue_offset, failure.level) for m, failure in order.done(last, call_failures(0), now).returned] == [
        (0, -1)
    ]
    requested = order.next_batch(2, now)
    decision = order.done(requested, call_failures(-1, None), now)
    assert offsets(decision.finished) == [2]
    assert [(m.queue_offset, failure.level) for m, failure in decision.returned] == [(1, -1)]


def test_ordered_delivery_without_a_limit_repeats_forever() -> None:
    order = ordered(1)
    for times in range(100):
        batch = order.next_batch(1, times * RETRY_SECONDS)
        assert batch[0].reconsume_times == times
        assert order.done(batch, call_failures(0), times * RETRY_SECONDS).returned == []


def test_put_back_keeps_messages_and_retry_counts() -> None:
    order = ordered(2)
    batch = order.next_batch(1, 0.0)
    order.put_back(batch)
    assert [(m.queue_offset, m.reconsume_times) for m in order.next_batch(9, 0.0)] == [(0, 0), (1, 0)]


def test_parked_key_waits_in_order_while_other_keys_continue() -> None:
    order = ordered("abacab", park=True)
    seen: list[tuple[int, int]] = []
    now = 0.0
    for _ in range(20):
        batch = order.next_batch(1, now)
        if not batch:
            wait = order.wait_seconds(now)
            if wait is None:
                break
            now += wait
            continue
        seen.append((batch[0].queue_offset, batch[0].reconsume_times))
        bad = batch[0].keys == ["a"] and now < 2 * RETRY_SECONDS
        decision = order.done(batch, call_failures(0 if bad else None), now)
        for finished in decision.finished:
            order.process.finish(finished.queue_offset)
        check_process_queue(order.process)
    assert seen == [(0, 0), (1, 0), (3, 0), (5, 0), (0, 1), (0, 2), (2, 0), (4, 0)]
    assert order.process.commit_offset == 6


def test_later_messages_of_a_failed_key_are_repeated_in_order() -> None:
    order = ordered("abab", park=True)
    batch = order.next_batch(4, 0.0)
    decision = order.done(batch, call_failures(0, None, None, None), 0.0)
    assert offsets(decision.finished) == [1, 3]
    assert order.next_batch(4, 0.5) == []
    again = order.next_batch(4, 1.0)
    assert [(m.queue_offset, m.reconsume_times) for m in again] == [(0, 1), (2, 0)]
    assert offsets(order.done(again, call_failures(None, None), 1.0).finished) == [0, 2]
    assert order.wait_seconds(1.0) is None


def test_parked_key_at_the_limit_returns_only_its_failure() -> None:
    order = ordered("aab", limit=0, park=True)
    batch = order.next_batch(3, 0.0)
    decision = order.done(batch, call_failures(0, None, None), 0.0)
    assert offsets(decision.finished) == [1, 2]
    assert [(m.queue_offset, failure.level) for m, failure in decision.returned] == [(0, -1)]


def test_put_back_keeps_parked_messages_parked() -> None:
    order = ordered("ab", park=True)
    assert offsets(order.done(order.next_batch(2, 0.0), call_failures(0, None), 0.0).finished) == [1]
    parked = order.next_batch(2, 1.0)
    order.put_back(parked)
    assert order.next_batch(2, 1.0) == parked


def test_parked_messages_block_no_others_up_to_max_parked() -> None:
    """Parked messages count neither as in flight nor for the span, up to `MAX_PARKED`."""
    process = ProcessQueue(QUEUE, 0)
    order = OrderedDelivery(process, RETRY_SECONDS, None, park_failed_keys=True)
    delivered = 0
    while process.has_room:  # every tenth message is of the key that fails
        offset = process.next_offset
        process.extend([message(offset, "bad" if offset % 10 == 0 else "good")], [10])
        for taken in iter(lambda: order.next_batch(1, 0.0), []):
            levels = [0 if taken[0].keys == ["bad"] else None]
            for finished in order.done(taken, call_failures(*levels), 0.0).finished:
                process.finish(finished.queue_offset)
                delivered += 1
        if offset % 100 == 0:  # validate checks all parked messages
            check_process_queue(process)
        assert process.next_offset <= 10 * MAX_PARKED + 1
    assert process.parked == MAX_PARKED
    assert delivered == 9 * (MAX_PARKED - 1)
    assert process.commit_offset == 0
    healed = order.next_batch(MAX_PARKED, RETRY_SECONDS)
    assert [each.queue_offset for each in healed] == [10 * number for number in range(MAX_PARKED)]
    for finished in order.done(healed, call_failures(*[None] * len(healed)), RETRY_SECONDS).finished:
        process.finish(finished.queue_offset)
    assert (process.parked, process.has_room, process.commit_offset) == (0, True, process.next_offset)


def test_span_behind_parked_messages_is_bounded() -> None:
    process = ProcessQueue(QUEUE, 0)
    order = OrderedDelivery(process, RETRY_SECONDS, None, park_failed_keys=True)
    process.extend([message(0, "bad")], [10])
    order.done(order.next_batch(1, 0.0), call_failures(0), 0.0)
    process.next_offset = MAX_SPAN_PARKED - 1
    assert process.has_room
    process.next_offset = MAX_SPAN_PARKED
    assert not process.has_room


def test_ordered_retry_has_the_previous_failure() -> None:
    order = ordered(2)
    first = order.next_batch(2, 0.0)
    order.done(first, call_failures(None, 0), 0.0)
    again = order.next_batch(2, RETRY_SECONDS)
    assert [m.failure for m in again] == [None, "ValueError: level 0"]
    order.done(again, call_failures(0, None), RETRY_SECONDS)
    assert [m.failure for m in order.next_batch(2, 2 * RETRY_SECONDS)] == ["ValueError: level 0", None]


def test_parked_retry_has_the_previous_failure() -> None:
    order = ordered("a", park=True)
    order.done(order.next_batch(1, 0.0), call_failures(0), 0.0)
    assert [m.failure for m in order.next_batch(1, RETRY_SECONDS)] == ["ValueError: level 0"]
