"""Test which queue locks an ordered member may use, and which it must renew."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from raymq.actors.broker.core.groups.rebalance_lock_manager import RebalanceLockManager
from raymq.actors.protocol import LEASE_SECONDS, SESSION_GRACE_SECONDS, MessageQueue
from raymq.client.members.lock_table import (
    BUSY_RENEW_SECONDS,
    IDLE_RENEW_SECONDS,
    LOCK_VALID_SECONDS,
    LockGrant,
    LockTable,
)
from tests.unit.actors.clock import FakeClock

QUEUE, OTHER = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


@dataclass
class FakeLink:
    is_open: bool = True


@pytest.mark.parametrize(
    ("answered_after", "asked_to_call", "open_", "may"),
    [
        (0.0, 0.0, True, True),
        (0.5, 1.0, True, True),
        (0.0, LOCK_VALID_SECONDS - 0.01, True, True),
        (0.0, LOCK_VALID_SECONDS, True, False),  # the broker may have seen the connection end just after the request
        (
            LOCK_VALID_SECONDS,
            LOCK_VALID_SECONDS,
            True,
            False,
        ),  # a slow answer: the lock's age counts from the request
        (0.0, 0.1, False, False),  # without a connection, the next owner would process it again
        (0.0, LEASE_SECONDS * 2, True, False),  # the process was stopped meanwhile
    ],
)
def test_call_needs_a_fresh_lock_and_an_open_connection(
    answered_after: float, asked_to_call: float, open_: bool, may: bool
) -> None:
    """Fault 13.19: the lock's age and its connection are checked before each call."""
    clock, link = FakeClock(), FakeLink()
    table = LockTable(clock)
    assert not table.may_begin(QUEUE)
    asked_at = clock()
    clock.advance(answered_after)
    table.granted(QUEUE, LockGrant(asked_at, 1, link))
    clock.advance(asked_to_call - answered_after)
    link.is_open = open_
    assert table.may_begin(QUEUE) is may


def test_lock_validity_ends_before_the_broker_session() -> None:
    assert LOCK_VALID_SECONDS < SESSION_GRACE_SECONDS < LEASE_SECONDS
    assert 2 * BUSY_RENEW_SECONDS < LOCK_VALID_SECONDS, "one lost answer does not stop a member"


def test_lock_after_a_possible_other_owner_is_a_new_lock() -> None:
    clock = FakeClock()
    table, brokers = LockTable(clock), RebalanceLockManager(clock)
    key = (QUEUE.topic, QUEUE.queue_id)

    def ask() -> bool:
        return table.granted(QUEUE, LockGrant(clock(), brokers.lock("g", "me", [key])[key], FakeLink()))

    assert not ask(), "nothing was held before"
    assert ask()
    clock.advance(LEASE_SECONDS + 1)
    assert ask(), "nobody asked for it meanwhile"
    brokers.forget({"me"})
    assert not ask(), "the broker had given it up"
    assert ask()
    clock.advance(LEASE_SECONDS)
    assert brokers.lock("g", "other", [key])
    brokers.unlock("g", "other", [key])
    assert not ask(), "another had it"


def test_older_answer_does_not_age_a_lock() -> None:
    clock, link = FakeClock(), FakeLink()
    table = LockTable(clock)
    table.granted(QUEUE, LockGrant(clock() - 0.1, 1, link))
    assert table.granted(QUEUE, LockGrant(clock() - 5.0, 1, link))
    assert table.may_begin(QUEUE)


def test_busy_locks_are_renewed_more_often_than_idle_ones() -> None:
    clock, link = FakeClock(), FakeLink()
    table = LockTable(clock)
    both = [QUEUE, OTHER]
    for queue in both:
        table.granted(queue, LockGrant(clock(), 1, link))
    assert table.due(both) == set()
    clock.advance(BUSY_RENEW_SECONDS)
    assert table.due(both) == set(both), "just taken over: in use"
    table.tried(both)
    assert table.due(both) == set(), "asked for already"
    clock.advance(12.0)
    table.tried(both)
    assert table.seconds_until_due(both) == IDLE_RENEW_SECONDS
    clock.advance(5.0)
    assert not table.may_begin(QUEUE)
    table.want(QUEUE)
    assert table.seconds_until_due(both) == 0
    assert table.due(both) == {QUEUE}
    assert table.due([OTHER]) == set()
    clock.advance(IDLE_RENEW_SECONDS)
    assert table.due(both) == set(both)


def test_unrenewed_lock_ends_after_its_lease() -> None:
    clock = FakeClock()
    table = LockTable(clock)
    table.granted(QUEUE, LockGrant(clock(), 1, FakeLink()))
    assert table.ended([QUEUE, OTHER]) == {OTHER}
    clock.advance(LEASE_SECONDS)
    assert table.ended([QUEUE]) == {QUEUE}
    table.forget(QUEUE)
    assert not table.may_begin(QUEUE)
