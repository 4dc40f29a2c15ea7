"""Test when a silent connection counts as dead, and when it is only idle."""

from __future__ import annotations

import pytest

from raymq.actors.wire.dead_peer_detector import SILENT_SECONDS, DeadPeerDetector
from tests.unit.actors.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


def report_unanswered(detector: DeadPeerDetector, clock: FakeClock, seconds: float) -> bool:
    """Report a request without an answer for `seconds`; return whether the peer is dead."""
    asked_at, receive_count = clock(), detector.receive_count
    clock.advance(seconds)
    return detector.unanswered(asked_at, receive_count)


def test_consecutive_unanswered_requests_mark_peer_dead(clock: FakeClock) -> None:
    detector = DeadPeerDetector(clock)
    found = [report_unanswered(detector, clock, 2.0) for _ in range(5)]
    assert found == [False] * 4 + [True]


def test_one_long_unanswered_request_marks_peer_dead(clock: FakeClock) -> None:
    assert not report_unanswered(DeadPeerDetector(clock), clock, SILENT_SECONDS - 0.1)
    assert report_unanswered(DeadPeerDetector(clock), clock, SILENT_SECONDS)


def test_received_frame_resets_detector(clock: FakeClock) -> None:
    """Receive an answer to another request while one is parked or slow."""
    detector = DeadPeerDetector(clock)
    assert not report_unanswered(detector, clock, 9.0)
    detector.receive_count += 1
    assert not report_unanswered(detector, clock, 9.0)
    assert report_unanswered(detector, clock, 1.0)
    asked_at, receive_count = clock(), detector.receive_count
    clock.advance(20.0)
    detector.receive_count += 1
    assert not detector.unanswered(asked_at, receive_count), "what was slow is not what is dead"


def test_idle_time_before_request_does_not_count(clock: FakeClock) -> None:
    """Cover a long-parked fetch, and a producer without sends for an hour."""
    detector = DeadPeerDetector(clock)
    clock.advance(3600.0)
    assert not report_unanswered(detector, clock, 3.0)


def test_oldest_of_concurrent_requests_counts(clock: FakeClock) -> None:
    detector = DeadPeerDetector(clock)
    first = clock()
    clock.advance(8.0)
    assert not report_unanswered(detector, clock, 1.0)
    clock.advance(1.0)
    assert detector.unanswered(first, detector.receive_count)
