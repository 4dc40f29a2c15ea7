"""A clock that a test sets."""

from __future__ import annotations


class FakeClock:
    """Seconds; call it for the time, `advance` it."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
