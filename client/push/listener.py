"""Call a listener and interpret its result for each message."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from raymq.actors.errors import InvalidInput
from raymq.actors.event_loop import EventLoopThread
from raymq.client.message import ReceivedMessage
from raymq.client.push.failures import CallFailure


class ConsumeResult(enum.Enum):
    """The result that a listener returns for its messages."""

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


@dataclass(frozen=True, slots=True)
class Retry:
    """The listener's result for a message to be delivered again.

    `delay_level` k >= 1 waits for the delay of that level. 0 chooses the level by the number of retries so far. -1
    sends the message to the dead-letter queue without a further retry.
    """

    delay_level: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.delay_level, int) or isinstance(self.delay_level, bool):
            raise TypeError(f"delay_level must be int, not {type(self.delay_level).__name__}")
        if self.delay_level < -1:
            raise InvalidInput("delay_level", "at least -1", self.delay_level)


#: The outcome of an awaitable: the listener's result, or an error.
_Awaited = tuple[Any, BaseException | None]
#: How often a waiting thread checks whether the program has closed its event loop during a call.
_LOOK_SECONDS: Final = 1.0
_LOOP_CLOSED: Final = "the event loop on which the consumer was started is closed; await ashutdown() before it ends"

Outcome = ConsumeResult | Retry
Answer = Outcome | Sequence[Outcome] | None
Listener = Callable[[list[ReceivedMessage]], Answer | Awaitable[Answer]]


#: The runner whose listener runs in the current thread or task, and in the tasks that it starts.
_calling: ContextVar[ListenerRunner | None] = ContextVar("raymq_listener", default=None)


class ListenerRunner:
    """Calls a listener and reads its result. Thread-safe.

    Awaitables that the listener returns run on the program's event loop, the one of `PushConsumer.astart`. If the
    consumer was started without an event loop, they run on a loop of the runner. Whether to await is decided by the
    returned object, since not only coroutine functions return awaitables.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        failure_text: bool = True,
        program_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Initialize the runner.

        Args:
            failure_text: False keeps only the type of the listener's exception as the reason of a failure.
        """
        if not callable(listener):
            raise TypeError("listener must be callable")
        self._listener = listener
        self._failure_text = failure_text
        self._program_loop = program_loop
        self._starting = threading.Lock()
        self._closed = False
        self._loop: EventLoopThread | None = None
        #: The calls that run on the program's loop.
        self._on_program_loop: set[Future[Any]] = set()

    @property
    def is_caller(self) -> bool:
        """Return True if the calling code is the listener itself, inside one of its calls."""
        return _calling.get() is self

    @property
    def is_on_program_loop(self) -> bool:
        """Return True if the calling thread runs the loop that the listener's coroutines need.

        Such a thread must not block.
        """
        with contextlib.suppress(RuntimeError):
            return asyncio.get_running_loop() is self._program_loop
        return False

    @property
    def loop(self) -> EventLoopThread | None:
        """Return the runner's own event loop, or None if it has not been needed."""
        return self._loop

    def call(self, messages: list[ReceivedMessage]) -> list[CallFailure | None]:
        """Call the listener and return one entry per message, None if it succeeded."""
        token = _calling.set(self)
        count = len(messages)
        try:
            answer: Any = self._listener(messages.copy())  # a copy: the listener may remove messages
            if answer is ConsumeResult.SUCCESS:
                return [None] * count
            if inspect.isawaitable(answer):
                answer = self._await(answer)
            return read_answer(answer, count)
        except BaseException as error:  # noqa: BLE001 - any failure of a user's code is one
            return [CallFailure.raised(error, with_text=self._failure_text)] * count
        finally:
            _calling.reset(token)

    def close(self) -> None:
        """Cancel the running coroutines and stop the runner's own event loop, if there is one."""
        with self._starting:
            self._closed = True
            loop = self._loop
        for call in list(self._on_program_loop):
            call.cancel()
        if loop is not None:
            loop.stop()

    def _await(self, answer: Awaitable[Any]) -> Any:
        if self._program_loop is not None:
            outcome, error = self._run_on(self._program_loop, answer)
            if error is not None:
                raise error
            return outcome
        with self._starting:
            if self._loop is None and not self._closed:
                self._loop = EventLoopThread("raymq-listener")
            loop = self._loop
        if loop is None:
            raise asyncio.CancelledError
        outcome, error = loop.run(_outcome(answer))
        if error is not None:
            raise error
        return outcome

    def _run_on(self, loop: asyncio.AbstractEventLoop, answer: Awaitable[Any]) -> _Awaited:
        coroutine = _outcome(answer)
        call: Future[_Awaited] | None = None
        try:
            if not loop.is_closed():
                with contextlib.suppress(RuntimeError):  # the loop was closed since the check
                    call = asyncio.run_coroutine_threadsafe(coroutine, loop)
            if call is None:
                raise RuntimeError(_LOOP_CLOSED)
            self._on_program_loop.add(call)
            if self._closed:
                call.cancel()
            while not wait((call,), _LOOK_SECONDS).done:
                if loop.is_closed():  # a closed loop neither runs nor cancels the call
                    raise RuntimeError(_LOOP_CLOSED)
            return call.result()
        except RuntimeError:
            for each in (coroutine, answer):  # Python warns about a coroutine that was never awaited
                if inspect.iscoroutine(each) and inspect.getcoroutinestate(each) == inspect.CORO_CREATED:
                    each.close()
            raise
        finally:
            if call is not None:
                self._on_program_loop.discard(call)


async def _outcome(answer: Awaitable[Any]) -> _Awaited:
    """Await the listener's awaitable and return its result or its error.

    An error that would end the event loop is returned like any other error, since other awaitables run on the same
    loop.
    """
    task = asyncio.current_task()
    try:
        return await answer, None
    except BaseException as error:
        if task is None or task.cancelling():  # the runner cancelled the call, or the loop ends
            raise
        return None, error


def read_answer(answer: Any, count: int) -> list[CallFailure | None]:
    """Return one entry per message for a listener's result, None if the message succeeded.

    A result that is not valid counts as failure for all messages.
    """
    if isinstance(answer, list | tuple):
        if len(answer) == count:
            return [_read(one) for one in answer]
        return [CallFailure.wrong_count(len(answer), count)] * count
    return [_read(answer)] * count


def _read(answer: Any) -> CallFailure | None:
    if answer is ConsumeResult.SUCCESS:
        return None
    if answer is ConsumeResult.RECONSUME_LATER:
        return CallFailure.asked_for("RECONSUME_LATER", 0)
    if isinstance(answer, Retry):
        return CallFailure.asked_for(repr(answer), answer.delay_level)
    return CallFailure.no_result(answer)
