"""An event loop on a thread of its own: where sockets and their decisions live, inside actors and inside clients.

uvloop is used where it is installed. The loop's thread is a daemon: a process that just ends is not held up.

Waking another thread takes longer than most small things that a loop has to have done elsewhere. So its thread may make
a short call of somebody else's code itself, beside the loop: it leaves the loop, makes the call, and comes back. If the
call is not as short as it was thought to be, a second thread, which looks every few milliseconds while there are such
calls, runs the loop from there on, and the first one stands by in its place.

A SystemExit or KeyboardInterrupt that comes out of a task or callback is none of a background loop's business: asyncio
lets it end the loop, and the loop is run again at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, Generic, TypeVar

from raymq.actors.backoff import Backoff

_T = TypeVar("_T")

#: How often the second thread looks whether it has to run the loop,
_LOOK_SECONDS: Final = 0.005
#: how long the loop waits for a call at least before it does,
_PATIENCE_SECONDS: Final = 0.002
#: and how many looks without a call it has before it sleeps until there is one.
_IDLE_LOOKS: Final = 20
#: A loop that was ended from within is run again at once; one that fails again and again, after a wait up to this.
_LONGEST_PAUSE_SECONDS: Final = 1.0

#: A task that is cancelled may begin others, which have to be ended, too; not without end.
_MOST_ENDINGS: Final = 10

_log = logging.getLogger(__name__)


class _LastCalls:
    """What a loop does with blocking calls once the program is ending and has no helper threads any more.

    It makes them itself: what is sent last may still have a host name to look up, or an actor to call.
    """

    def run_in_executor(self: Any, executor: Any, call: Callable[..., _T], *arguments: Any) -> asyncio.Future[_T]:
        try:
            return super().run_in_executor(executor, call, *arguments)  # type: ignore[misc, no-any-return]
        except RuntimeError:
            if self.is_closed():
                raise
        done: asyncio.Future[_T] = self.create_future()
        try:
            done.set_result(call(*arguments))
        except Exception as error:  # noqa: BLE001 - it is the call's own
            done.set_exception(error)
        return done


class _BlockingCall(Generic[_T]):
    """A coroutine that a thread waits for, which an exception may interrupt anywhere, as one of a signal handler does.

    It waits for a plain lock. A `Future`'s condition is made in Python: an exception within its `__enter__` leaves it
    locked for ever, and with it the event loop, which tells the result.
    """

    __slots__ = ("_coroutine", "_ended", "_error", "_given_up", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[_T] | None = None
        self._error: BaseException | None = None
        self._given_up = False
        self._ended = threading.Lock()
        self._ended.acquire()

    def begin(self) -> None:
        """On the loop."""
        if self._given_up:
            self._coroutine.close()
            self._ended.release()
            return
        try:
            self._task = asyncio.get_running_loop().create_task(self._coroutine)
        except BaseException as error:
            self._error = error
            self._ended.release()
            raise
        self._task.add_done_callback(self._tell)

    def never_began(self) -> None:
        """The loop has ended without it."""
        self._coroutine.close()
        self._error = RuntimeError("the event loop has ended")
        self._ended.release()

    def cancel(self) -> None:
        """On the loop; nothing happens to what has ended."""
        self._given_up = True
        if self._task is not None:
            self._task.cancel()

    def result(self, timeout: float | None) -> _T:
        """On the thread that waits. TimeoutError after `timeout` seconds."""
        if not self._ended.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        task = self._task
        if task is None or task.cancelled():
            raise CancelledError
        return task.result()

    def _tell(self, task: asyncio.Task[_T]) -> None:
        if not task.cancelled():
            task.exception()  # somebody has asked for it: it is no exception that was never retrieved
        self._ended.release()


class EventLoopThread:
    """Starts with construction; `stop()` cancels what runs and ends the thread. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.loop = _new_event_loop()
        self._stopping = False
        self._ending = False
        #: How often something within the loop raised what ends one, and it was run again.
        self.failures = 0
        self.last_failure: BaseException | None = None
        self.failed_at = 0.0
        self._pause = Backoff(first=0.001, cap=_LONGEST_PAUSE_SECONDS)
        self._ended = threading.Event()
        #: Calls that threads wait for and the loop has not begun.
        self._handed_over: set[_BlockingCall[Any]] = set()
        self._aside: Callable[[], None] | None = None
        self._standby = _Standby()
        self._thread = threading.Thread(target=self._live, args=(True,), name=name, daemon=True)
        #: What `threading.get_ident` says on the loop; None while nobody runs it.
        self.thread_id: int | None = None
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether coroutines can still be submitted."""
        return self._thread.is_alive() and not self.loop.is_closed()

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the loop's own."""
        return threading.get_ident() == self.thread_id

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the loop; the future resolves with its result."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine and wait for its result; cancelled if the caller is interrupted or `timeout` (s) is over."""
        if self.is_current:
            coroutine.close()
            raise RuntimeError("a blocking call on the event loop's own thread would wait for itself")
        call = _BlockingCall(coroutine)
        try:
            try:
                self._handed_over.add(call)
                self.loop.call_soon_threadsafe(self._begin, call)
            except RuntimeError:
                self._handed_over.discard(call)
                coroutine.close()
                raise
            return call.result(timeout)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the call
                self.loop.call_soon_threadsafe(call.cancel)
            raise

    def stop(self, timeout: float = 5.0) -> None:
        """Cancel all tasks and end the thread; at most `timeout` seconds."""
        if self.is_running:
            self._stopping = True
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.loop.stop)
            if not self.is_current:
                self._ended.wait(timeout)

    def _begin(self, call: _BlockingCall[Any]) -> None:
        if self._ending:
            return  # it would be cancelled at once, and its caller might ask again for as long as that takes
        self._handed_over.discard(call)
        call.begin()

    def run_aside(self, call: Callable[[], None]) -> bool:
        """On the loop: let its thread make this short call, beside the loop, as soon as what is ready has been done.

        False: it cannot do that now. If the call takes longer than a few milliseconds, the loop goes on elsewhere.
        """
        if self._aside is not None or self._stopping or not self._standby.is_ready(self._live):
            return False
        self._aside = call
        self.loop.stop()
        return True

    def _live(self, has_loop: bool) -> None:
        """On either thread: run the loop while it has it, stand by while the other one does."""
        asyncio.set_event_loop(self.loop)
        while has_loop or self._standby.wait(self._ended):
            try:
                has_loop = self._run()
            except BaseException:
                self._end()
                raise
            if has_loop:
                self._end()
                return

    def _run(self) -> bool:
        """Run the loop and make what calls there are beside it, until it ends, or (False) is run elsewhere."""
        while True:
            self.thread_id = threading.get_ident()
            failed = self._run_until_stopped()
            call, self._aside = self._aside, None
            if self._stopping or self.loop.is_closed():
                return True
            if call is None:
                if failed:
                    continue
                return True
            self.thread_id = None
            self._standby.begin()
            try:
                call()
            except BaseException:  # noqa: BLE001 - somebody else's code must not end the loop
                _log.exception("a call beside the event loop failed")
            if not self._standby.end():
                return False

    def _run_until_stopped(self) -> bool:
        """Run the loop; True if what ended it was raised within it, by somebody's task or callback."""
        began = time.monotonic()
        try:
            self.loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - it is for whoever raised it, and must not end the others' loop
            self.failures += 1
            self.last_failure = error
            self.failed_at = time.time()
            if self._stopping or self.loop.is_closed():
                return True
            _log.error("%s: the event loop was ended by %r and goes on", self._thread.name, error, exc_info=error)
            if time.monotonic() - began > _LONGEST_PAUSE_SECONDS:
                self._pause.reset()
            time.sleep(self._pause.next_delay())
            return True
        return False

    def _end(self) -> None:
        self._ending = True
        try:
            for _ in range(_MOST_ENDINGS):
                self.loop.run_until_complete(asyncio.sleep(0))  # who waits for what is done is told so
                tasks = asyncio.all_tasks(self.loop)
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.close()
        finally:
            self._ended.set()
            with contextlib.suppress(KeyError):  # empty; who hands something to a closed loop takes it back by itself
                while True:
                    self._handed_over.pop().never_began()
            self._standby.wake()


class _Standby:
    """The thread that has not got the loop, and what it knows of the one that has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waits = False
        self._calls = 0
        #: When the call began that is being made; None if the other thread runs the loop.
        self._began: float | None = None
        self._has_work = threading.Event()

    def is_ready(self, live: Callable[[bool], None]) -> bool:
        """Whether a thread waits to take the loop over; the first time one is started, for another time."""
        if self._thread is None:
            thread = threading.Thread(target=live, args=(False,), name="raymq-standby", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no room for one more thread now, or the program is ending
                _log.debug("no thread can stand by: %s", error)
                return False
            self._thread = thread
        return self._waits

    def begin(self) -> None:
        """The loop's thread makes a call."""
        self._calls += 1
        self._began = time.monotonic()
        if not self._has_work.is_set():
            self._has_work.set()

    def end(self) -> bool:
        """It has made it. Whether it still has the loop."""
        with self._lock:
            mine, self._began = self._began is not None, None
            return mine

    def wake(self) -> None:
        """Let it see that the loop has ended."""
        self._has_work.set()

    def wait(self, ended: threading.Event) -> bool:
        """On the thread that stands by: True once it has the loop, False when that has ended."""
        self._waits = True
        while True:
            self._has_work.wait()
            if ended.is_set():
                return False
            idle, calls = 0, self._calls
            while idle < _IDLE_LOOKS and not ended.is_set():
                time.sleep(_LOOK_SECONDS)
                if self._takes_over():
                    return True
                idle, calls = (idle + 1, calls) if calls == self._calls else (0, self._calls)
            self._has_work.clear()
            if calls != self._calls or ended.is_set():  # it had looked before we cleared
                self._has_work.set()

    def _takes_over(self) -> bool:
        with self._lock:
            if self._began is None or time.monotonic() - self._began < _PATIENCE_SECONDS:
                return False
            self._began, self._waits = None, False
            return True


def _new_event_loop() -> asyncio.AbstractEventLoop:
    kind: Any = asyncio.SelectorEventLoop
    with contextlib.suppress(ImportError):
        kind = importlib.import_module("uvloop").Loop
    loop: asyncio.AbstractEventLoop = type("Loop", (_LastCalls, kind), {})()
    return loop
