"""Test when a consumer counts as hanging."""

from __future__ import annotations

import pytest

from raymq.actors.protocol import MessageQueue
from raymq.client.consumer_health import Health, RunningCall, hanging

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(3)]


@pytest.mark.parametrize(
    ("seconds", "named"),
    [
        ([], []),
        ([299.0], []),
        ([300.0], []),
        ([301.0], [301.0]),
        ([301.0, 900.0, 400.0], [900.0, 400.0, 301.0]),
        ([301.0, 900.0, 0.0], []),  # one thread makes progress
        ([1.0, 2.0, 3.0], []),
    ],
)
def test_listener_hangs_when_all_calls_exceed_hang_after(seconds: list[float], named: list[float]) -> None:
    running = [RunningCall(queue, each) for queue, each in zip(QUEUES, seconds, strict=False)]
    found = hanging(running, 300.0)
    assert [call.seconds for call in found] == named
    assert Health(running=True, hanging=found).ok is not bool(named)
    assert not Health(running=False, hanging=found).ok
