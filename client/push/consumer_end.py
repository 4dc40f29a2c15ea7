"""Wait for the end of a consumer, or for a failed background task."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy

from raymq.actors.errors import SubscriptionMismatch
from raymq.actors.supervisor import WorkFailure
from raymq.client.consumer_health import raise_persistent


class ConsumerEnd:
    """The end of one consumer. Thread-safe.

    Args:
        failures: returns the failures of the consumer's background tasks.
    """

    def __init__(self, failures: Callable[[], Sequence[WorkFailure]]) -> None:
        self._failures = failures
        #: The error with which the consumer ends without a call of `shutdown`.
        self.error: SubscriptionMismatch | None = None
        self._ended = threading.Event()
        #: The number of events: an unexpected failure, or the end of the consumer.
        self._events = 0
        self._changed = threading.Condition()
        #: Called at each event.
        self._listeners: set[Callable[[], None]] = set()

    @property
    def is_reached(self) -> bool:
        """Return True if the consumer has ended."""
        return self._ended.is_set()

    def reach(self) -> None:
        """Record that the consumer has ended."""
        self._ended.set()
        self.notify()

    def notify(self) -> None:
        """Wake the waiting callers after an event."""
        with self._changed:
            self._events += 1
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    @contextlib.contextmanager
    def listener(self, call: Callable[[], None]) -> Iterator[None]:
        """Call a function at each event, on any thread."""
        with self._changed:
            self._listeners.add(call)
        try:
            yield
        finally:
            with self._changed:
                self._listeners.discard(call)

    def raise_error(self) -> bool:
        """Return True, or raise the error with which the consumer has ended."""
        if self.error is not None:
            raise copy(self.error)
        return True

    def wait_only(self, timeout: float) -> bool:
        """Wait for the end and ignore failures; return False if the consumer still runs."""
        return self._ended.wait(timeout)

    def wait(self, timeout: float | None) -> bool:
        """Wait for the end; see `PushConsumer.wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._events
            if self.is_reached:
                return self.raise_error()
            raise_persistent(self._failures())
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            with self._changed:
                self._changed.wait_for(lambda: self._events != seen, remaining)  # noqa: B023 - called before the loop's next iteration

    async def await_(self, timeout: float | None) -> bool:
        """Do `wait` on any event loop."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        deadline = None if timeout is None else loop.time() + timeout

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # that loop is gone
                loop.call_soon_threadsafe(event.set)

        with self.listener(wake):
            while True:
                event.clear()
                if self.is_reached:
                    return self.raise_error()
                raise_persistent(self._failures())
                try:
                    async with asyncio.timeout_at(deadline):
                        await event.wait()
                except TimeoutError:
                    return self._ended.is_set() and self.raise_error()
