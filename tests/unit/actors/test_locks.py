"""Test queue locks: grants, renewal, release and expiry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raymq.actors.broker.core.groups.rebalance_lock_manager import RebalanceLockManager
from raymq.actors.errors import ServerBusy
from raymq.actors.protocol import LEASE_SECONDS
from tests.unit.actors.clock import FakeClock
from tests.validation import validated

Q0, Q1, Q2 = ("t", 0), ("t", 1), ("t", 2)


@pytest.fixture
def locks(clock: FakeClock) -> Iterator[RebalanceLockManager]:
    with validated(RebalanceLockManager(clock)) as made:
        yield made


def test_only_free_queues_are_locked(locks: RebalanceLockManager) -> None:
    assert set(locks.lock("g", "x", [Q0, Q1])) == {Q0, Q1}
    assert set(locks.lock("g", "y", [Q1, Q2])) == {Q2}
    assert set(locks.lock("h", "y", [Q0])) == {Q0}, "another group has locks of its own"
    assert [locks.holder("g", *queue) for queue in (Q0, Q1, Q2)] == ["x", "x", "y"]


def test_repeated_lock_request_renews_lease(locks: RebalanceLockManager, clock: FakeClock) -> None:
    locks.lock("g", "x", [Q0])
    clock.advance(LEASE_SECONDS - 1)
    assert set(locks.lock("g", "x", [Q0])) == {Q0}
    clock.advance(LEASE_SECONDS - 1)
    assert set(locks.lock("g", "y", [Q0])) == set()
    clock.advance(1)
    assert locks.holder("g", *Q0) is None
    assert set(locks.lock("g", "y", [Q0])) == {Q0}
    assert set(locks.lock("g", "x", [Q0])) == set()


def test_only_holder_can_unlock(locks: RebalanceLockManager) -> None:
    locks.lock("g", "x", [Q0, Q1])
    locks.unlock("g", "y", [Q0])
    assert locks.holder("g", *Q0) == "x"
    locks.unlock("g", "x", [Q0])
    assert [locks.holder("g", *queue) for queue in (Q0, Q1)] == [None, "x"]


def test_leave_and_forget_release_locks(locks: RebalanceLockManager) -> None:
    for group in ("g", "h"):
        locks.lock(group, "x", [Q0])
        locks.lock(group, "y", [Q1])
    locks.leave("g", "x")
    assert [locks.holder(group, *Q0) for group in ("g", "h")] == [None, "x"]
    locks.forget({"x"})
    assert [locks.holder(group, *Q0) for group in ("g", "h")] == [None, None]
    assert [locks.holder(group, *Q1) for group in ("g", "h")] == ["y", "y"]


def test_group_has_locks_until_lease_expires(locks: RebalanceLockManager, clock: FakeClock) -> None:
    assert not locks.has_locks("g")
    locks.lock("g", "x", [Q0])
    assert locks.has_locks("g")
    assert not locks.has_locks("h")
    clock.advance(LEASE_SECONDS)
    assert not locks.has_locks("g")


def test_lock_term_changes_with_holder(locks: RebalanceLockManager, clock: FakeClock) -> None:
    first = locks.lock("g", "x", [Q0, Q1])
    assert first[Q0] != first[Q1]
    clock.advance(LEASE_SECONDS + 1)
    assert locks.lock("g", "x", [Q0]) == {Q0: first[Q0]}, "nobody had it meanwhile"
    clock.advance(LEASE_SECONDS)
    locks.lock("g", "y", [Q0])
    locks.unlock("g", "y", [Q0])
    assert locks.lock("g", "x", [Q0])[Q0] not in first.values()
    assert RebalanceLockManager(clock).lock("g", "x", [Q0])[Q0] not in first.values(), "a broker that started anew"


def test_restarted_broker_blocks_grants_until_old_locks_expire(locks: RebalanceLockManager, clock: FakeClock) -> None:
    assert locks.blocked_seconds == 0
    locks.block_grants(2.0)
    clock.advance(0.5)
    assert locks.blocked_seconds == 1.5
    clock.advance(2.0)
    assert locks.blocked_seconds == 0


def test_empty_lock_request_locks_nothing(locks: RebalanceLockManager) -> None:
    assert set(locks.lock("g", "x", [])) == set()
    locks.unlock("nobody", "x", [Q0])


def test_lock_count_is_bounded(locks: RebalanceLockManager, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound the locks that a client may hold on invented groups and queues."""
    monkeypatch.setattr("raymq.actors.broker.core.groups.rebalance_lock_manager.MAX_LOCKS", 3)
    locks.lock("g", "x", [Q0, Q1])
    locks.lock("h", "x", [Q0])
    with pytest.raises(ServerBusy):
        locks.lock("i", "x", [Q0])
    assert set(locks.lock("g", "x", [Q0, Q1])) == {Q0, Q1}, "what is held is renewed"
    assert locks.lock("g", "y", [Q0, Q1]) == {}, "what others hold is none more"
    locks.unlock("h", "x", [Q0])
    locks.lock("i", "y", [Q0])
    clock.advance(LEASE_SECONDS)
    assert set(locks.lock("j", "y", [Q0, Q1, Q2])) == {Q0, Q1, Q2}, "those that are over make room"
    locks.forget({"y"})
    assert set(locks.lock("g", "x", [Q0, Q1, Q2])) == {Q0, Q1, Q2}
