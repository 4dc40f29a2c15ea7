"""What a listener answers, and what its answer means for each message."""

from __future__ import annotations

import enum
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raymq.actors.errors import InvalidInput
from raymq.actors.event_loop import EventLoopThread
from raymq.client.message import ReceivedMessage

_log = logging.getLogger(__name__)


class ConsumeResult(enum.Enum):
    """A listener's answer."""

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


@dataclass(frozen=True, slots=True)
class Retry:
    """Come again: `delay_level` k >= 1 after that level's wait, 0 by the ladder, -1 straight to the dead letters."""

    delay_level: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.delay_level, int) or isinstance(self.delay_level, bool):
            raise TypeError(f"delay_level must be int, not {type(self.delay_level).__name__}")
        if self.delay_level < -1:
            raise InvalidInput("delay_level", "at least -1", self.delay_level)


Outcome = ConsumeResult | Retry
Answer = Outcome | Sequence[Outcome] | None
Listener = Callable[[list[ReceivedMessage]], Answer | Awaitable[Answer]]


class ListenerRunner:
    """Calls a listener and reads its answer. Thread-safe; a coroutine function runs on an event loop of its own."""

    def __init__(self, listener: Listener) -> None:
        if not callable(listener):
            raise TypeError("listener must be callable")
        self._listener = listener
        self._loop: EventLoopThread | None = None
        if inspect.iscoroutinefunction(listener):
            self._loop = EventLoopThread("raymq-listener")

    def call(self, messages: list[ReceivedMessage]) -> list[int | None]:
        """Per message None if it succeeded, else the delay level of its retry (0 the ladder, -1 the dead letters)."""
        try:
            answer: Any = self._listener(messages)
            if self._loop is not None:
                answer = self._loop.run(answer)
        except BaseException as error:  # noqa: BLE001 - any failure of a user's code is one
            _log.info("the listener failed on %d messages: %r", len(messages), error)
            return [0] * len(messages)
        return read_answer(answer, len(messages))

    def close(self) -> None:
        """End the event loop, if there is one."""
        if self._loop is not None:
            self._loop.stop()


def read_answer(answer: Any, count: int) -> list[int | None]:
    """What an answer says of each of `count` messages; what is no answer at all counts as failure."""
    if isinstance(answer, list | tuple):
        if len(answer) == count:
            return [_read(one) for one in answer]
        _log.warning("the listener answered %d results for %d messages: all are retried", len(answer), count)
        return [0] * count
    return [_read(answer)] * count


def _read(answer: Any) -> int | None:
    if answer is ConsumeResult.SUCCESS:
        return None
    return answer.delay_level if isinstance(answer, Retry) else 0
