"""Wait in tests by polling with a deadline; tests do not sleep to synchronise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

INTERVAL_SECONDS = 0.02


def poll_until(predicate: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
    """Return the first true value of `predicate()`; AssertionError with the last value after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        seen = predicate()
        if seen:
            return seen
        if time.monotonic() >= deadline:
            name = what or getattr(predicate, "__qualname__", "the condition")
            raise AssertionError(f"not within {timeout} s: {name}; last seen: {seen!r}")
        time.sleep(INTERVAL_SECONDS)
