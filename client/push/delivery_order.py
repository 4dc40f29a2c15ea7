"""Decide which messages of a queue the listener gets next, unordered or ordered. No I/O.

An order decides for one `ProcessQueue`. `ConsumeMessageService` takes messages from it and reports the outcomes. Times
are monotonic seconds.

An ordered queue has one run of calls at a time, and a failure repeats the same messages in place. With
`park_failed_keys` a failure delays only the messages of its key: they are parked in their order while the rest of the
queue goes on. The key is the sharding key with which the message was sent, or its first key if there is none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from raymq.client.message import ReceivedMessage
from raymq.client.push.failures import CallFailure
from raymq.client.push.process_queue import ProcessQueue
from raymq.storage.records import property_names as properties

#: The failure of each message of a call, None if it succeeded.
Failures = list[CallFailure | None]


def all_succeeded(failures: Failures) -> bool:
    """Return True if no message of a call failed."""
    return failures.count(None) == len(failures)


@dataclass(frozen=True, slots=True)
class OrderDecision:
    """The outcome of a call's messages.

    The order itself repeats messages that are in neither list.
    """

    finished: list[ReceivedMessage]
    returned: list[tuple[ReceivedMessage, CallFailure]]


class DeliveryOrder(Protocol):
    """One queue's order of delivery.

    While `blocked`, an ordered queue returns no messages.
    """

    process: ProcessQueue
    blocked: bool

    @property
    def waits_for_call(self) -> bool:
        """Return True if messages may be delivered once the running call has ended.

        Any thread may call this.
        """

    def next_batch(self, size: int, now: float, calls: int = 1) -> list[ReceivedMessage]:
        """Return messages for up to `calls` calls of `size` each, or [].

        The calls are made one after the other, until one of them fails.
        """

    def wait_seconds(self, now: float) -> float | None:
        """Return in how many seconds `next_batch` may have messages, 0 for now.

        Return None if that depends on another event.
        """

    def done(self, messages: list[ReceivedMessage], failures: Failures, now: float) -> OrderDecision:
        """Process the outcomes of a call that has ended."""

    def put_back(self, messages: list[ReceivedMessage]) -> None:
        """Restore the messages of a call that does not count, because of an outage."""

    def forget_call(self) -> None:
        """Forget a call that has ended, whose messages are handled elsewhere."""


@dataclass(slots=True)
class ConcurrentDelivery:
    """An order with any number of calls at a time. Failed messages are sent back."""

    process: ProcessQueue
    blocked: bool = False
    waits_for_call: bool = False

    def next_batch(self, size: int, now: float, calls: int = 1) -> list[ReceivedMessage]:  # noqa: ARG002 - this order does not depend on the time
        return self.process.take(size * calls)

    def wait_seconds(self, now: float) -> float | None:  # noqa: ARG002 - this order does not depend on the time
        return 0.0 if self.process.ready else None

    def done(self, messages: list[ReceivedMessage], failures: Failures, now: float) -> OrderDecision:  # noqa: ARG002
        if all_succeeded(failures):
            return OrderDecision(messages, [])
        pairs = list(zip(messages, failures, strict=True))
        return OrderDecision(
            [message for message, failure in pairs if failure is None],
            [(message, failure) for message, failure in pairs if failure is not None],
        )

    def put_back(self, messages: list[ReceivedMessage]) -> None:
        self.process.put_back(messages)

    def forget_call(self) -> None:
        pass


@dataclass(slots=True)
class _Parked:
    """The parked messages of one key, the failed ones first."""

    messages: deque[ReceivedMessage]
    retry_at: float


@dataclass(slots=True)
class OrderedDelivery:
    """An order with one call at a time.

    A failure repeats the same list after `retry_seconds`. If `max_reconsume_times` is None, this has no limit;
    otherwise a message that fails once more than that is returned with level -1, to the dead letters. Other delay
    levels have no effect here. A level of -1 applies at once.
    """

    process: ProcessQueue
    retry_seconds: float
    max_reconsume_times: int | None = None
    park_failed_keys: bool = False
    blocked: bool = False
    _running: bool = False
    _running_key: str | None = None
    _retry_at: float = 0.0
    _parked: dict[str, _Parked] = field(default_factory=dict)

    @property
    def waits_for_call(self) -> bool:
        return bool(self.process.ready or self._parked)

    def next_batch(self, size: int, now: float, calls: int = 1) -> list[ReceivedMessage]:
        if self._running or self.blocked:
            return []
        batch = self._next_parked(size, now)
        if not batch and now >= self._retry_at:
            batch = self._next_fresh(size * calls)
        self._running = bool(batch)
        self._count_parked()
        return batch

    def wait_seconds(self, now: float) -> float | None:
        if self._running or self.blocked:
            return None
        times = [parked.retry_at for parked in self._parked.values()]
        if self.process.ready:
            times.append(self._retry_at)
        return max(0.0, min(times) - now) if times else None

    def done(self, messages: list[ReceivedMessage], failures: Failures, now: float) -> OrderDecision:
        pairs = list(zip(messages, failures, strict=True))
        dead = [
            (m, failure.to_dead_letters()) for m, failure in pairs if failure is not None and self._dies(m, failure)
        ]
        remaining = [(m, failure) for m, failure in pairs if failure is None or not self._dies(m, failure)]
        finished: list[ReceivedMessage] = []
        if self.park_failed_keys:
            finished = self._park(remaining, now)
        elif all(failure is None for _, failure in remaining):
            finished = [m for m, _ in remaining]
        else:
            self.process.put_back(
                [m.with_failure(None if failure is None else failure.reason) for m, failure in remaining]
            )
            self._retry_at = now + self.retry_seconds
        self._running, self._running_key = False, None
        self._count_parked()
        return OrderDecision(finished, dead)

    def put_back(self, messages: list[ReceivedMessage]) -> None:
        if self._running_key is None:
            self.process.put_back(messages)
        else:
            self._parked[self._running_key].messages.extendleft(reversed(messages))
        self._running, self._running_key = False, None
        self._count_parked()

    def next_messages(self) -> list[ReceivedMessage]:
        """Return the messages with which the next calls begin: the first ready one, and the first parked ones."""
        first = self.process.first_ready
        parked = [each.messages[0] for each in self._parked.values() if each.messages]
        return parked if first is None else [first, *parked]

    def _count_parked(self) -> None:
        if self._parked or self.process.parked:
            self.process.parked = sum(len(parked.messages) for parked in self._parked.values())

    def forget_call(self) -> None:
        if self._running_key is not None and not self._parked[self._running_key].messages:
            del self._parked[self._running_key]
        self._running, self._running_key = False, None

    def _dies(self, message: ReceivedMessage, failure: CallFailure) -> bool:
        return failure.level < 0 or (
            self.max_reconsume_times is not None and message.reconsume_times >= self.max_reconsume_times
        )

    def _next_parked(self, limit: int, now: float) -> list[ReceivedMessage]:
        for key, parked in self._parked.items():
            if now >= parked.retry_at:
                self._running_key = key
                return [parked.messages.popleft() for _ in range(min(limit, len(parked.messages)))]
        return []

    def _next_fresh(self, limit: int) -> list[ReceivedMessage]:
        if not self._parked:
            return self.process.take(limit)
        batch: list[ReceivedMessage] = []
        while len(batch) < limit and self.process.ready:
            for message in self.process.take(limit - len(batch)):
                parked = self._parked.get(_key(message))
                if parked is None:
                    batch.append(message)
                else:
                    parked.messages.append(message)
        return batch

    def _park(self, remaining: list[tuple[ReceivedMessage, CallFailure | None]], now: float) -> list[ReceivedMessage]:
        """Park the failed messages and those that follow them under the same key.

        Return the other messages, which are finished.
        """
        finished = []
        aside: dict[str, list[ReceivedMessage]] = {}
        for message, failure in remaining:
            key = _key(message)
            if failure is not None:
                aside.setdefault(key, []).append(message.with_failure(failure.reason))
            elif key in aside:
                aside[key].append(message)
            else:
                finished.append(message)
        for key, messages in aside.items():
            parked = self._parked.setdefault(key, _Parked(deque(), 0.0))
            parked.messages.extendleft(reversed(messages))
            parked.retry_at = now + self.retry_seconds
        running = self._running_key
        if running is not None and running not in aside:
            if self._parked[running].messages:
                self._parked[running].retry_at = now
            else:
                del self._parked[running]
        return finished


def _key(message: ReceivedMessage) -> str:
    sharding_key = message.system_properties.get(properties.SHARDING_KEY)
    return sharding_key if sharding_key is not None else next(iter(message.keys), "")
