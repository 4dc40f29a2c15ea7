"""A listener for tests that records its messages."""

from __future__ import annotations

import threading

from raymq.client import ConsumeResult, ReceivedMessage, Retry


class RecordingListener:
    """A listener that records every message for which `fails` returns None, and otherwise returns that result."""

    def __init__(self, fails: object = lambda message: None) -> None:
        self.fails = fails
        self.taken: list[ReceivedMessage] = []
        self.deliveries: list[tuple[bytes, int]] = []
        self._lock = threading.Lock()

    def __call__(self, messages: list[ReceivedMessage]) -> list[ConsumeResult | Retry]:
        results: list[ConsumeResult | Retry] = []
        with self._lock:
            for message in messages:
                self.deliveries.append((message.body, message.reconsume_times))
                failure = self.fails(message)  # type: ignore[operator]
                if failure is None:
                    self.taken.append(message)
                results.append(failure or ConsumeResult.SUCCESS)
        return results

    @property
    def bodies(self) -> list[bytes]:
        return sorted(message.body for message in self.taken)
