"""What a listener answers, and what its answer means for each message."""

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


#: What was awaited came to: an answer, or an error.
_Awaited = tuple[Any, BaseException | None]
#: How often it is looked whether the program has closed its loop amid a call.
_LOOK_SECONDS: Final = 1.0
_LOOP_CLOSED: Final = "the event loop on which the consumer was started is closed; await ashutdown() before it ends"

Outcome = ConsumeResult | Retry
Answer = Outcome | Sequence[Outcome] | None
Listener = Callable[[list[ReceivedMessage]], Answer | Awaitable[Answer]]


#: Whose listener runs here: in the thread or the task that calls it, and in what these begin.
_calling: ContextVar[ListenerRunner | None] = ContextVar("raymq_listener", default=None)


class ListenerRunner:
    """Calls a listener and reads its answer. Thread-safe; what it has to await runs on the program's event loop.

    That is the loop on which the consumer was started; where it was started on none, a loop of the runner's own.
    Whether something has to be awaited its answer says: a coroutine function is only one of the things that return an
    awaitable.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        failure_text: bool = True,
        program_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`failure_text` False keeps only the type of what the listener raises as a failure's reason."""
        if not callable(listener):
            raise TypeError("listener must be callable")
        self._listener = listener
        self._failure_text = failure_text
        self._program_loop = program_loop
        self._starting = threading.Lock()
        self._closed = False
        self._loop: EventLoopThread | None = None
        #: Calls that run on the program's loop.
        self._on_program_loop: set[Future[Any]] = set()

    @property
    def is_caller(self) -> bool:
        """Whether who asks is the listener itself, in one of its calls."""
        return _calling.get() is self

    @property
    def is_on_program_loop(self) -> bool:
        """Whether the calling thread runs the loop that the listener's coroutines need, so that it must not block."""
        with contextlib.suppress(RuntimeError):
            return asyncio.get_running_loop() is self._program_loop
        return False

    @property
    def loop(self) -> EventLoopThread | None:
        """Where it awaits, once it had to."""
        return self._loop

    def call(self, messages: list[ReceivedMessage]) -> list[CallFailure | None]:
        """Call the listener; per message None if it succeeded."""
        token = _calling.set(self)
        count = len(messages)
        try:
            answer: Any = self._listener(messages.copy())  # its own: it may take out what it has done
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
        """Cancel what is awaited; end the event loop, if there is one of its own."""
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
                with contextlib.suppress(RuntimeError):  # it has been closed just now
                    call = asyncio.run_coroutine_threadsafe(coroutine, loop)
            if call is None:
                raise RuntimeError(_LOOP_CLOSED)
            self._on_program_loop.add(call)
            if self._closed:
                call.cancel()
            while not wait((call,), _LOOK_SECONDS).done:
                if loop.is_closed():  # nobody runs the call any more, nor cancels it
                    raise RuntimeError(_LOOP_CLOSED)
            return call.result()
        except RuntimeError:
            for each in (coroutine, answer):  # never begun, it would be missed by Python
                if inspect.iscoroutine(each) and inspect.getcoroutinestate(each) == inspect.CORO_CREATED:
                    each.close()
            raise
        finally:
            if call is not None:
                self._on_program_loop.discard(call)


async def _outcome(answer: Awaitable[Any]) -> _Awaited:
    """What it comes to. What would end the loop on which others are awaited, too, is an outcome like any other."""
    task = asyncio.current_task()
    try:
        return await answer, None
    except BaseException as error:
        if task is None or task.cancelling():  # the loop is ended
            raise
        return None, error


def read_answer(answer: Any, count: int) -> list[CallFailure | None]:
    """What an answer says of each of `count` messages; what is no answer at all counts as failure."""
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
