"""An event loop on its own thread, for the sockets of actors and clients.

uvloop is used if it is installed. The loop's thread is a daemon, so it does not keep a process from ending.

To wake another thread takes longer than most small calls that a loop needs to have made elsewhere. So the loop's thread
may make a short call of foreign code itself: it leaves the loop, makes the call and returns to the loop. If the call
takes longer than expected, a standby thread, which checks every few milliseconds while there are such calls, takes over
the loop, and the first thread becomes the standby.

A SystemExit or KeyboardInterrupt out of a task or callback must not end a background loop: asyncio lets it stop the
loop, and the loop is run again at once.
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

#: The interval at which the standby thread checks whether it has to run the loop.
_LOOK_SECONDS: Final = 0.005
#: A call has to take at least this long before the standby thread takes over the loop.
_PATIENCE_SECONDS: Final = 0.002
#: After so many checks without a call the standby thread sleeps until the next call.
_IDLE_LOOKS: Final = 20
#: A loop that was stopped by an exception is run again at once; after repeated failures, with a pause of up to this.
_LONGEST_PAUSE_SECONDS: Final = 1.0

#: The most rounds of cancelling at the end: a cancelled task may begin others, which have to be cancelled as well.
_MAX_ENDINGS: Final = 10

_log = logging.getLogger(__name__)


class _InlineExecutorLoop:
    """A loop that makes blocking calls itself once no helper threads can be started.

    That is so while the program ends: the last sends may still have to look up a host name or call an actor.
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
        except Exception as error:  # noqa: BLE001 - the caller receives it
            done.set_exception(error)
        return done


class _BlockingCall(Generic[_T]):
    """A coroutine that a thread waits for.

    An exception may interrupt the thread anywhere, for example one of a signal handler. So the thread waits for a plain
    lock. A `Future`'s condition is written in Python: an exception within its `__enter__` leaves it locked for ever,
    and with it blocks the event loop that sets the result.
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
        """Start the coroutine, on the loop."""
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
        self._task.add_done_callback(self._notify)

    def never_began(self) -> None:
        """Fail the call after the loop has ended without running it."""
        self._coroutine.close()
        self._error = RuntimeError("the event loop has ended")
        self._ended.release()

    def cancel(self) -> None:
        """Cancel the call, on the loop; a call that has ended is left alone."""
        self._given_up = True
        if self._task is not None:
            self._task.cancel()

    def result(self, timeout: float | None) -> _T:
        """Wait for the result, on the calling thread.

        Raise TimeoutError after `timeout` seconds.
        """
        if not self._ended.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        task = self._task
        if task is None or task.cancelled():
            raise CancelledError
        return task.result()

    def _notify(self, task: asyncio.Task[_T]) -> None:
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, which asyncio would else log
        self._ended.release()


class EventLoopThread:
    """An event loop on a thread that starts with construction. Thread-safe.

    `stop()` cancels the tasks and ends the thread.
    """

    def __init__(self, name: str) -> None:
        self.loop = _new_event_loop()
        self._stopping = False
        self._ending = False
        #: How often an exception within the loop has stopped it, and it was run again.
        self.failures = 0
        self.last_failure: BaseException | None = None
        self.failed_at = 0.0
        self._pause = Backoff(first=0.001, cap=_LONGEST_PAUSE_SECONDS)
        self._ended = threading.Event()
        #: Calls that threads wait for, and that the loop has not begun.
        self._handed_over: set[_BlockingCall[Any]] = set()
        self._aside: Callable[[], None] | None = None
        self._standby = _StandbyThread()
        self._thread = threading.Thread(target=self._live, args=(True,), name=name, daemon=True)
        #: The ident of the thread that runs the loop; None while no thread does.
        self.thread_id: int | None = None
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Return True if coroutines can still be submitted."""
        return self._thread.is_alive() and not self.loop.is_closed()

    @property
    def is_current(self) -> bool:
        """Return True if the calling thread is the loop's own."""
        return threading.get_ident() == self.thread_id

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the loop, and return a future of its result."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise

    def start(self, coroutine: Coroutine[Any, Any, _T], done: Callable[[asyncio.Task[_T]], object]) -> None:
        """Run a coroutine on the loop, and call `done` there with its ended task.

        Unlike `submit` it leaves no lock that the loop takes, too: a signal handler that interrupts the caller anywhere
        may wait for the loop.
        """
        try:
            self.loop.call_soon_threadsafe(self._start, coroutine, done)
        except RuntimeError:
            coroutine.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine and wait for its result.

        It is cancelled if the caller is interrupted, or after `timeout` seconds.
        """
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
            with contextlib.suppress(RuntimeError):  # the loop has closed, and with it the call
                self.loop.call_soon_threadsafe(call.cancel)
            raise

    def stop(self, timeout: float = 5.0) -> None:
        """Cancel all tasks and end the thread, within `timeout` seconds."""
        if self.is_running:
            self._stopping = True
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.loop.stop)
            if not self.is_current:
                self._ended.wait(timeout)

    def _start(self, coroutine: Coroutine[Any, Any, _T], done: Callable[[asyncio.Task[_T]], object]) -> None:
        self.loop.create_task(coroutine).add_done_callback(done)

    def _begin(self, call: _BlockingCall[Any]) -> None:
        if self._ending:
            return  # it would be cancelled at once, and its caller might repeat the call until the end
        self._handed_over.discard(call)
        call.begin()

    def run_on_loop_thread(self, call: Callable[[], None]) -> bool:
        """Make a short call on the loop's thread, outside the loop; return False if impossible.

        Call it on the loop. The call is made as soon as the callbacks that are ready have run. If it takes longer than
        a few milliseconds, the standby thread takes over the loop.
        """
        if self._aside is not None or self._stopping or not self._standby.is_ready(self._live):
            return False
        self._aside = call
        self.loop.stop()
        return True

    def _live(self, has_loop: bool) -> None:
        """Run the loop or stand by, in turns, on either of the two threads."""
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
        """Run the loop, and make the calls outside it.

        Return True when the loop has ended, and False when the other thread has taken it over.
        """
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
            except BaseException:  # noqa: BLE001 - an error in a call must not end the loop
                _log.exception("a call outside of the event loop failed")
            if not self._standby.end():
                return False

    def _run_until_stopped(self) -> bool:
        """Run the loop; return True if an exception within it has stopped it.

        The exception came from a task or a callback.
        """
        began = time.monotonic()
        try:
            self.loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - one task's error must not end the loop of the others
            self.failures += 1
            self.last_failure = error
            self.failed_at = time.time()
            if self._stopping or self.loop.is_closed():
                return True
            _log.error(
                "%s: the event loop was stopped by %r and is run again", self._thread.name, error, exc_info=error
            )
            if time.monotonic() - began > _LONGEST_PAUSE_SECONDS:
                self._pause.reset()
            time.sleep(self._pause.next_delay())
            return True
        return False

    def _end(self) -> None:
        self._ending = True
        try:
            for _ in range(_MAX_ENDINGS):
                self.loop.run_until_complete(asyncio.sleep(0))  # callbacks of finished tasks run first
                tasks = asyncio.all_tasks(self.loop)
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.close()
        finally:
            self._ended.set()
            with contextlib.suppress(KeyError):  # empty; a later `run` fails by itself on the closed loop
                while True:
                    self._handed_over.pop().never_began()
            self._standby.wake()


class _StandbyThread:
    """The thread that can take over the loop from the thread that runs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waits = False
        self._calls = 0
        #: The start of the call in progress; None while the other thread runs the loop.
        self._began: float | None = None
        self._has_work = threading.Event()

    def is_ready(self, live: Callable[[bool], None]) -> bool:
        """Return True if a thread waits to take over the loop.

        The first call starts that thread, for later calls.
        """
        if self._thread is None:
            thread = threading.Thread(target=live, args=(False,), name="raymq-standby", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may start no more threads, or is ending
                _log.debug("could not start the standby thread: %s", error)
                return False
            self._thread = thread
        return self._waits

    def begin(self) -> None:
        """Note that the loop's thread makes a call."""
        self._calls += 1
        self._began = time.monotonic()
        if not self._has_work.is_set():
            self._has_work.set()

    def end(self) -> bool:
        """Note the end of the call; return True if the caller still has the loop."""
        with self._lock:
            mine, self._began = self._began is not None, None
            return mine

    def wake(self) -> None:
        """Wake the thread to check whether the loop has ended."""
        self._has_work.set()

    def wait(self, ended: threading.Event) -> bool:
        """Stand by; return True once this thread has the loop, False when it ended."""
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
            if calls != self._calls or ended.is_set():  # a call came between the check and the clear
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
    loop: asyncio.AbstractEventLoop = type("Loop", (_InlineExecutorLoop, kind), {})()
    return loop
