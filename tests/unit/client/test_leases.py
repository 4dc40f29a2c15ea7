"""Which call begins next with lent messages, and which leases are renewed: decisions, with a clock of ours."""

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


def lent(
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


def test_as_many_calls_as_threads_begin(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, *map(lent, range(5)))
    assert known.free == 2
    first, second, third = begin(known), begin(known), begin(known)
    assert (offsets(first), offsets(second), third, known.free) == ([0], [1], None, 0)
    end(known, first)
    assert offsets(begin(known)) == [2]


def test_batch_is_of_one_queue(clock: FakeClock) -> None:
    known = leases(clock, batch_size=3)
    add(known, lent(0), lent(7, queue_id=1), lent(1), lent(2), lent(3))
    assert [offsets(begin(known)) for _ in range(2)] == [[0, 1, 2], [7]]


def test_first_calls_begin_one_at_a_time(clock: FakeClock) -> None:
    known = leases(clock, threads=9, first_calls=2)
    add(known, *map(lent, range(5)))
    first = begin(known)
    assert begin(known) is None
    assert known.young_until() == 100.0 + LAUNCH_GUARD_SECONDS
    end(known, first)
    assert offsets(begin(known)) == [1], "the broker learns of both in one request"
    clock.advance(2 * LAUNCH_GUARD_SECONDS)
    assert [offsets(begin(known)) for _ in range(3)] == [[2], [3], [4]]
    assert known.young_until() is None


def test_outcome_at_another_broker_is_waited_for(clock: FakeClock) -> None:
    known = leases(clock, threads=2)
    add(known, lent(0), lent(1, "b"), lent(2, "b"))
    first = begin(known)
    end(known, first)
    assert offsets(begin(known)) == [1], "another thread has no outcome that is not known"
    assert begin(known) is None
    assert first is not None
    known.calls.discard(first)
    assert offsets(begin(known)) == [2]


def test_outcome_is_waited_for_where_the_broker_knows_of_the_call(clock: FakeClock) -> None:
    known = leases(clock, threads=1)
    add(known, lent(0))
    first = begin(known)
    assert first is not None
    end(known, first)
    add(known, lent(1, begun=True))
    assert begin(known) is None, "no request says of both"
    known.calls.discard(first)
    assert offsets(begin(known)) == [1]


def test_suspect_runs_alone(clock: FakeClock) -> None:
    known = leases(clock, threads=3)
    add(known, lent(0))
    first = begin(known)
    add(known, lent(1), lent(2, suspect=True))
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


def test_message_that_comes_again_waits_for_the_call_with_it(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, lent(0))
    first = begin(known)
    add(known, lent(0))
    assert begin(known) is None
    assert known.waiting == 0, "it keeps no other message from being lent"
    end(known, first)
    assert known.waiting == 1
    assert offsets(begin(known)) == [0]


def test_leases_are_due_when_half_of_them_is_over(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, lent(0), lent(1))
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


def test_leases_that_are_due_soon_are_renewed_with_those_that_are(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, lent(0))
    clock.advance(2.0)
    add(known, lent(1))
    clock.advance(1.0)
    add(known, lent(2))
    assert known.due() == ([], [])
    clock.advance(2.0)
    assert [each.place[1] for each in known.due()[0]] == [0, 1]


def test_what_waits_for_long_is_taken_out_but_the_next_suspect(clock: FakeClock) -> None:
    known = leases(clock)
    add(known, lent(0), lent(1, suspect=True), lent(3, suspect=True))
    clock.advance(1.0)
    add(known, lent(2))
    assert [each.place[1] for each in known.take_unstarted(100.0)] == [0, 3]
    assert [each.place[1] for each in known.take_redelivered((MessageQueue("t", "a", 0), 2))] == [2]
    assert [each.place[1] for each in known.take_unstarted()] == [1]
