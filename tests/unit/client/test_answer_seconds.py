"""Test how long a fetch's answer may take beyond its caller's time-out."""

from __future__ import annotations

import pytest

from raymq.client.pull.pull_fetcher import answer_seconds


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(0.0, 2.0), (0.1, 2.0), (1.0, 2.0), (3.0, 3.0), (5.0, 5.0), (30.0, 10.0), (1e9, 10.0)]
)
def test_answer_time_equals_timeout_within_2_and_10_seconds(timeout: float, seconds: float) -> None:
    assert answer_seconds(timeout) == seconds
