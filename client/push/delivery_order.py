"""Which messages of a queue may go to the listener next: anything ready (unordered), or strictly in order. No I/O.

An order decides for one `ProcessQueue`; `Delivery` asks it and tells it outcomes. Times are monotonic seconds.

A strict order lets one call run at a time; a failure repeats the same messages in place. With `park_failed_keys` a
failure holds up only the messages of its key: they wait aside, in their order, while the rest of the queue goes on.
The key is the sharding key that the message was sent with, else its first key.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from raymq.client.message import ReceivedMessage
from raymq.client.push.failures import CallFailure
from raymq.client.push.process_queue import ProcessQueue
from raymq.storage.records import property_names as properties

#: What became of each message of a call: None where it succeeded.
Failures = list[CallFailure | None]


def all_succeeded(failures: Failures) -> bool:
    """Whether a listener failed on nothing."""
    return failures.count(None) == len(failures)


@dataclass(frozen=True, slots=True)
class OrderDecision:
    """What becomes of a call's messages; those in neither list are repeated in place, by the order itself."""

    finished: list[ReceivedMessage]
    returned: list[tuple[ReceivedMessage, CallFailure]]


class DeliveryOrder(Protocol):
    """One queue's order of delivery. While `blocked` an ordered one lets nothing go."""

    process: ProcessQueue
    blocked: bool

    @property
    def waits_for_call(self) -> bool:
        """Whether something in it may go when the call that runs has ended. Any thread may ask."""

    def next_batch(self, limit: int, now: float) -> list[ReceivedMessage]:
        """Messages for one call of the listener; [] if none may go now."""

    def wait_seconds(self, now: float) -> float | None:
        """How long until `next_batch` may have something, 0 for now; None until something happens."""

    def done(self, messages: list[ReceivedMessage], failures: Failures, now: float) -> OrderDecision:
        """A call ended."""

    def put_back(self, messages: list[ReceivedMessage]) -> None:
        """A call did not count (an outage): its messages are as they were before."""

    def forget_call(self) -> None:
        """A call ended, and its messages are looked after elsewhere."""


@dataclass(slots=True)
class AnyOrder:
    """Any number of calls at a time; what fails is sent back to its broker."""

    process: ProcessQueue
    blocked: bool = False
    waits_for_call: bool = False

    def next_batch(self, limit: int, now: float) -> list[ReceivedMessage]:  # noqa: ARG002 - time plays no part
        return self.process.take(limit)

    def wait_seconds(self, now: float) -> float | None:  # noqa: ARG002 - time plays no part
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
    """The messages of one key that wait aside, the failed ones first."""

    messages: deque[ReceivedMessage]
    retry_at: float


@dataclass(slots=True)
class StrictOrder:
    """One call at a time, in order; a failure repeats the same list after `retry_seconds`.

    `max_reconsume_times` None repeats without end; else what failed once more than that is returned with level -1, to
    the dead letters. Other delay levels have no meaning here; -1 is obeyed at once.
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

    def next_batch(self, limit: int, now: float) -> list[ReceivedMessage]:
        if self._running or self.blocked:
            return []
        batch = self._next_parked(limit, now)
        if not batch and now >= self._retry_at:
            batch = self._next_fresh(limit)
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
        left = [(m, failure) for m, failure in pairs if failure is None or not self._dies(m, failure)]
        finished: list[ReceivedMessage] = []
        if self.park_failed_keys:
            finished = self._park(left, now)
        elif all(failure is None for _, failure in left):
            finished = [m for m, _ in left]
        else:
            self.process.put_back([m.tried_again(None if failure is None else failure.reason) for m, failure in left])
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

    def _park(self, left: list[tuple[ReceivedMessage, CallFailure | None]], now: float) -> list[ReceivedMessage]:
        """Set aside what failed, and what follows it under its key; the rest is finished."""
        finished = []
        aside: dict[str, list[ReceivedMessage]] = {}
        for message, failure in left:
            key = _key(message)
            if failure is not None:
                aside.setdefault(key, []).append(message.tried_again(failure.reason))
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
