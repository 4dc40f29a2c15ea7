"""Provide a clock that a test sets by hand."""

from __future__ import annotations


class FakeClock:
    """Count seconds: call the clock for the time, `advance` to move it."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
