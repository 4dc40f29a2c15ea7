"""When a connection on which nothing comes is dead, and when it only has nothing to say."""

from __future__ import annotations

import pytest

from raymq.actors.wire.dead_peer_detector import SILENT_SECONDS, DeadPeerDetector
from tests.unit.actors.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


def went_unanswered(silence: DeadPeerDetector, clock: FakeClock, seconds: float) -> bool:
    """Ask, and hear nothing for so long."""
    asked_at, receive_count = clock(), silence.receive_count
    clock.advance(seconds)
    return silence.unanswered(asked_at, receive_count)


def test_requests_that_go_unanswered_one_after_the_other_end_it(clock: FakeClock) -> None:
    silence = DeadPeerDetector(clock)
    found = [went_unanswered(silence, clock, 2.0) for _ in range(5)]
    assert found == [False] * 4 + [True]


def test_a_single_long_one_ends_it_and_a_short_one_does_not(clock: FakeClock) -> None:
    assert not went_unanswered(DeadPeerDetector(clock), clock, SILENT_SECONDS - 0.1)
    assert went_unanswered(DeadPeerDetector(clock), clock, SILENT_SECONDS)


def test_whatever_comes_ends_the_silence(clock: FakeClock) -> None:
    """An answer to another request, for example, while one is parked or is slow."""
    silence = DeadPeerDetector(clock)
    assert not went_unanswered(silence, clock, 9.0)
    silence.receive_count += 1
    assert not went_unanswered(silence, clock, 9.0)
    assert went_unanswered(silence, clock, 1.0)
    asked_at, receive_count = clock(), silence.receive_count
    clock.advance(20.0)
    silence.receive_count += 1
    assert not silence.unanswered(asked_at, receive_count), "what was slow is not what is dead"


def test_silence_before_anything_was_asked_is_no_silence(clock: FakeClock) -> None:
    """A fetch that is parked for longer than that, or a producer that has nothing to send for an hour."""
    silence = DeadPeerDetector(clock)
    clock.advance(3600.0)
    assert not went_unanswered(silence, clock, 3.0)


def test_of_requests_side_by_side_the_first_one_counts(clock: FakeClock) -> None:
    silence = DeadPeerDetector(clock)
    first = clock()
    clock.advance(8.0)
    assert not went_unanswered(silence, clock, 1.0)
    clock.advance(1.0)
    assert silence.unanswered(first, silence.receive_count)
