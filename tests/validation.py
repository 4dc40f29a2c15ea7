"""Check the invariants of an object at the end of its test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import singledispatch
from typing import Any, TypeVar

import numpy as np

from raymq.actors.broker.core.appending.admission import Admission
from raymq.actors.broker.core.appending.idempotence import ProducerStateTable
from raymq.actors.broker.core.delay.timer_wheel import TimerWheel
from raymq.actors.broker.core.groups.client_registry import ClientRegistry
from raymq.actors.broker.core.groups.rebalance_lock_manager import RebalanceLockManager
from raymq.actors.broker.core.pop.pop_service import PopService
from raymq.actors.broker.core.pop.unacked_queue import UnackedQueue
from raymq.actors.broker.core.reading.long_poll import LongPollingService
from raymq.actors.broker.replication.in_sync_set import InSyncSet
from raymq.actors.names.recently_left_brokers import RecentlyLeftBrokers
from raymq.actors.names.route_table import RouteTable
from raymq.actors.wire.request_memory_budget import RequestMemoryBudget

T = TypeVar("T")


@contextmanager
def validated(subject: T) -> Iterator[T]:
    """Yield an object to the test, and check its invariants afterwards."""
    yield subject
    check_invariants(subject)


@singledispatch
def check_invariants(subject: Any) -> None:
    """Assert the invariants of an object of one of the types below."""
    raise TypeError(f"no invariants are known of {type(subject).__name__}")


@check_invariants.register
def _check_admission(subject: Admission) -> None:
    assert subject.appends_under_way >= 0
    assert subject.bytes_under_way >= 0
    assert subject.appends_under_way or not subject.bytes_under_way


@check_invariants.register
def _check_producer_state_table(subject: ProducerStateTable) -> None:
    for history in subject._lanes.values():
        ends = [first + stored.total for first, stored in history.results]
        assert [*[first for first, _ in history.results][1:], history.next] == ends or not ends
        assert history.missing == 0 or (history.missing > 0 and ends)
    assert len(subject._lanes) <= subject._max_lanes
    assert {lane for lanes in subject._by_topic.values() for lane in lanes} == subject._lanes.keys()
    assert all(subject._by_topic.values())


@check_invariants.register
def _check_timer_wheel(subject: TimerWheel) -> None:
    assert bool((subject._dues[1:] >= subject._dues[:-1]).all())
    assert len(np.unique(subject._waiting["queue_offset"])) == len(subject._waiting)


@check_invariants.register
def _check_client_registry(subject: ClientRegistry) -> None:
    for client in subject._clients.values():
        assert bool(client.connections) == (client.orphaned_at is None)
        assert all(client.client_id in subject._by_connection[c] for c in client.connections)
    assert all(group.members for group in subject._consumers.values()), "a group without members stays listed"
    assert all(
        owner.client_id in group.members for group in subject._consumers.values() for owner in group.owners.values()
    )
    assert all(subject._producers.values())
    for group in subject._consumers.values():
        versions = [member.version for member in group.members.values() if member.version is not None]
        assert group.in_force == max(versions, default=None), "the version in force is that of a member"
    for connection, weight in subject._held.items():
        assert weight == sum(subject._clients[each].weight for each in subject._by_connection[connection])
    assert subject._weight >= sum(client.weight for client in subject._clients.values())
    for members in [*(g.members for g in subject._consumers.values()), *subject._producers.values()]:
        assert all(subject._clients[client_id] is member.client for client_id, member in members.items())


@check_invariants.register
def _check_rebalance_lock_manager(subject: RebalanceLockManager) -> None:
    assert all(subject._groups.values()), "a group without locks stays listed"
    assert subject._count == sum(map(len, subject._groups.values()))
    terms = [lock.term for locks in subject._groups.values() for lock in locks.values()]
    assert len(terms) == len(set(terms)), "two locks have one term"


@check_invariants.register
def _check_pop_service(subject: PopService) -> None:
    assert subject._lent.keys() == subject._store.in_flight.queues.keys()
    for lent in subject._lent.values():
        assert lent.deliveries, "a queue without lent messages stays listed"
        alarm, expiry = subject._alarms.of(lent.queue), lent.next_expiry_ms
        assert lent.queue in subject._waiting or expiry is None or (alarm is not None and alarm <= expiry)
        assert lent.queue in subject._waiting or not lent.has_dead
        check_invariants(lent)


@check_invariants.register
def _check_unacked_queue(subject: UnackedQueue) -> None:
    living = set(subject.deliveries)
    assert list(subject.deliveries) == sorted(subject.deliveries)
    assert all(offset < subject.next_offset for offset in living)
    assert living <= set(subject._order)
    assert len(set(subject._ready)) == len(subject._ready)
    assert living.issuperset(subject._ready)
    timed = {expiry[1] for expiry in subject._expiries if subject._is_current(expiry)}
    assert {*timed, *subject._ready, *(o for o in subject._dead if o in living)} == living, (
        "every delivery is timed, ready or dead"
    )


@check_invariants.register
def _check_long_polling_service(subject: LongPollingService) -> None:
    parked = {p for waiting in subject._by_tick.values() for p in waiting}
    assert len(parked) == subject._count
    assert {p for waiting in subject._by_queue.values() for p in waiting} == {p for p in parked if p.queues}
    assert {p for waiting in subject._by_topic.values() for p in waiting} == {p for p in parked if p.topics}
    assert set(subject._by_session.values()) == {p for p in parked if p.session is not None}
    assert all(subject._by_queue.values()), "an empty set stays listed"
    assert all(subject._by_topic.values()), "an empty set stays listed"
    assert all(subject._by_tick.values()), "an empty set stays listed"


@check_invariants.register
def _check_in_sync_set(subject: InSyncSet) -> None:
    assert subject._own in subject.members
    assert subject._end.covers(subject._safe)
    assert subject._end.covers(subject.confirmed)
    for number, peer in subject._peers.items():
        assert number != subject._own
        assert peer.has is None or subject._end.covers(peer.has)
    assert subject.required >= subject.members


@check_invariants.register
def _check_recently_left_brokers(subject: RecentlyLeftBrokers) -> None:
    assert subject.topics == sum(len(away.topics) for away in subject._brokers.values())
    since = [away.since for away in subject._brokers.values()]
    assert since == sorted(since)


@check_invariants.register
def _check_route_table(subject: RouteTable) -> None:
    assert all(subject._brokers.values()), "a broker without a replica is listed"
    for replicas in subject._brokers.values():
        assert len({registration.cluster for registration in replicas.values()}) == 1
        assert len({registration.address for registration in replicas.values()}) == len(replicas)
    assert subject._epochs.keys() <= subject._brokers.keys()
    registrations = [registration for _, _, registration in subject._registrations()]
    assert subject._count == len(registrations)
    assert subject._topics == sum(len(registration.topics) for registration in registrations)
    check_invariants(subject._away)


@check_invariants.register
def _check_request_memory_budget(subject: RequestMemoryBudget) -> None:
    assert subject.held_bytes >= 0
    assert subject.arriving_bytes == sum(subject._memory.values())
    assert subject._turn is None or subject._turn in subject._memory
