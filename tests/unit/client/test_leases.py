"""Test which call begins next with leased messages, and which leases are renewed."""

from __future__ import annotations

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.actors.wire.headers.pop_headers import ReceiptHandle
from raymq.client.message import ReceivedMessage
from raymq.client.push.message_leases import LAUNCH_GUARD_SECONDS, LeasedCall, MessageLeases
from raymq.client.receipt import Receipt
from tests.received_messages import message
from tests.unit.actors.clock import FakeClock

LEASE_SECONDS = 10.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


def leases(clock: FakeClock, threads: int = 2, batch_size: int = 1, first_calls: int = 0) -> MessageLeases:
    return MessageLeases(clock, threads, batch_size, LEASE_SECONDS, first_calls)


def leased_message(
    offset: int, broker: str = "a", queue_id: int = 0, *, suspect: bool = False, begun: bool = False
) -> ReceivedMessage:
    receipt = Receipt(ReceiptHandle(offset, 1, 1, 0, "0", broker, queue_id, offset), suspect, is_begun=begun)
    return message(offset, queue=MessageQueue("t", broker, queue_id), receipt=receipt)


def add(known: MessageLeases, *messages: ReceivedMessage) -> None:
    for each in messages:
        known.add(each, known.clock() + LEASE_SECONDS / 2)


def begin(known: MessageLeases) -> LeasedCall | None:
    call = known.next_call()
    if call is not None:
        call.begun_at = known.clock()
    return call


def offsets(call: LeasedCall | None) -> list[int]:
    return [] if call is None else [offset for _, offset in call.leases]


def end(known: MessageLeases, call: LeasedCall | None) -> None:
    assert call is not None
    for place in list(call.leases):
        known.ended(call, place)


def test_one_call_per_thread_begins(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, *map(leased_message, range(5)))
    assert known.free == 2
    first, second, third = begin(known), begin(known), begin(known)
    assert (offsets(first), offsets(second), third, known.free) == ([0], [1], None, 0)
    end(known, first)
    assert offsets(begin(known)) == [2]


def test_batch_has_messages_of_one_queue(clock: FakeClock) -> None:
    known = leases(clock, batch_size=3)
    add(
        known, leased_message(0), leased_message(7, queue_id=1), leased_message(1), leased_message(2), leased_message(3)
    )
    assert [offsets(begin(known)) for _ in range(2)] == [[0, 1, 2], [7]]


def test_first_calls_begin_one_at_a_time(clock: FakeClock) -> None:
    known = leases(clock, threads=9, first_calls=2)
    add(known, *map(leased_message, range(5)))
    first = begin(known)
    assert begin(known) is None
    assert known.young_until() == 100.0 + LAUNCH_GUARD_SECONDS
    end(known, first)
    assert offsets(begin(known)) == [1], "the broker learns of both in one request"
    clock.advance(2 * LAUNCH_GUARD_SECONDS)
    assert [offsets(begin(known)) for _ in range(3)] == [[2], [3], [4]]
    assert known.young_until() is None


def test_thread_waits_for_its_outcome_at_another_broker(clock: FakeClock) -> None:
    known = leases(clock, threads=2)
    add(known, leased_message(0), leased_message(1, "b"), leased_message(2, "b"))
    first = begin(known)
    end(known, first)
    assert offsets(begin(known)) == [1], "another thread has no outcome that is not known"
    assert begin(known) is None
    assert first is not None
    known.calls.discard(first)
    assert offsets(begin(known)) == [2]


def test_begun_message_waits_for_the_previous_outcome(clock: FakeClock) -> None:
    known = leases(clock, threads=1)
    add(known, leased_message(0))
    first = begin(known)
    assert first is not None
    end(known, first)
    add(known, leased_message(1, begun=True))
    assert begin(known) is None, "no request says of both"
    known.calls.discard(first)
    assert offsets(begin(known)) == [1]


def test_suspect_message_runs_alone(clock: FakeClock) -> None:
    known = leases(clock, threads=3)
    add(known, leased_message(0))
    first = begin(known)
    add(known, leased_message(1), leased_message(2, suspect=True))
    assert begin(known) is None, "the call that runs is waited for"
    assert known.free == 0
    end(known, first)
    assert first is not None
    known.calls.discard(first)
    suspect = begin(known)
    assert offsets(suspect) == [2]
    assert begin(known) is None
    end(known, suspect)
    assert suspect is not None
    known.calls.discard(suspect)
    assert offsets(begin(known)) == [1]


def test_redelivered_message_waits_for_its_running_call(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, leased_message(0))
    first = begin(known)
    add(known, leased_message(0))
    assert begin(known) is None
    assert known.waiting == 0, "it keeps no other message from being lent"
    end(known, first)
    assert known.waiting == 1
    assert offsets(begin(known)) == [0]


def test_leases_are_due_after_half_of_their_time(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, leased_message(0), leased_message(1))
    begin(known)
    assert known.due() == ([], [])
    clock.advance(5.0)
    ahead, running = known.due()
    assert [each.place[1] for each in (*ahead, *running)] == [1, 0]
    running[0].is_renewing = True
    known.renewed(ahead[0], clock.now)
    assert known.due() == ([], [])
    clock.advance(5.0)
    assert [each.place[1] for each in known.over()] == [0]
    clock.advance(5.0)
    assert [each.place[1] for each in known.over()] == [1, 0]
    assert known.ahead == {}


def test_leases_due_soon_are_renewed_with_due_ones(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, leased_message(0))
    clock.advance(2.0)
    add(known, leased_message(1))
    clock.advance(1.0)
    add(known, leased_message(2))
    assert known.due() == ([], [])
    clock.advance(2.0)
    assert [each.place[1] for each in known.due()[0]] == [0, 1]


def test_unstarted_messages_are_taken_except_the_next_suspect(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, leased_message(0), leased_message(1, suspect=True), leased_message(3, suspect=True))
    clock.advance(1.0)
    add(known, leased_message(2))
    assert [each.place[1] for each in known.take_unstarted(100.0)] == [0, 3]
    assert [each.place[1] for each in known.take_redelivered((MessageQueue("t", "a", 0), 2))] == [2]
    assert [each.place[1] for each in known.take_unstarted()] == [1]
