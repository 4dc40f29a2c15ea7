"""Run processes in virtual time: coroutines that sleep, stop and die, event by event."""

from __future__ import annotations

import heapq
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any


class Signal:
    """Let coroutines and callbacks wait for a value."""

    def __init__(self) -> None:
        self.is_done = False
        self.value: Any = None
        self._waiting: list[Callable[[], None]] = []

    def set(self, value: Any = None) -> None:
        if not self.is_done:
            self.is_done, self.value = True, value
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                each()

    def then(self, callback: Callable[[], None]) -> None:
        if self.is_done:
            callback()
        else:
            self._waiting.append(callback)

    def __await__(self) -> Generator[Signal, None, Any]:
        if not self.is_done:
            yield self
        return self.value


class Scheduler:
    """Order all events; the same seed gives the same order."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)
        self._count = 0
        self._events: list[tuple[float, int, Callable[[], None], Process | None]] = []

    def after(self, seconds: float, callback: Callable[[], None], owner: Process | None = None) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, callback, owner))

    def run(self, seconds: float) -> None:
        """Let this much time pass."""
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, callback, owner = heapq.heappop(self._events)
            if owner is None:
                callback()
            else:
                owner.do(callback)
        self.now = until


class Process:
    """Run one process on a machine: a kill ends its work, a stop delays it."""

    def __init__(self, scheduler: Scheduler, name: str, speed: float = 1.0) -> None:
        """Create a process on a machine whose clock runs at `speed`."""
        self.scheduler = scheduler
        self.name = name
        self.is_alive = True
        self.is_stopped = False
        self._speed = speed
        self._clock_stands_at: float | None = None
        self._parked: list[Callable[[], None]] = []
        self._tasks: list[Coroutine[Any, Any, Any]] = []

    def clock(self) -> float:
        if self._clock_stands_at is not None:
            return self._clock_stands_at
        return self.scheduler.now * self._speed

    def stop_clock(self) -> None:
        """Freeze the clock, as on a machine whose clock counts no sleep or is wrong."""
        self._clock_stands_at = self.clock()

    def repair_clock(self) -> None:
        """Restart the clock, which jumps to the current time."""
        self._clock_stands_at = None

    def do(self, callback: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if self.is_stopped:
            self._parked.append(callback)
        else:
            callback()

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        self.scheduler.after(seconds / self._speed, callback, self)

    def pause(self, seconds: float) -> Signal:
        made = Signal()
        self.after(seconds, made.set)
        return made

    def within(self, signal: Signal, seconds: float) -> Signal:
        """Wait for `signal`, at most so many seconds; the result says whether it was set."""
        made = Signal()
        signal.then(lambda: made.set(True))
        self.after(seconds, lambda: made.set(False))
        return made

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Signal:
        """Run a coroutine; return a signal that is set to its result."""
        ended = Signal()
        self._tasks.append(coroutine)

        def step() -> None:
            if not self.is_alive:
                return
            try:
                waited = coroutine.send(None)
            except StopIteration as stop:
                self._tasks.remove(coroutine)
                ended.set(stop.value)
            else:
                waited.then(lambda: self.scheduler.after(0.0, step, self))

        step()
        return ended

    def stop(self) -> None:
        """Stop as by SIGSTOP."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Continue as by SIGCONT, and run all parked callbacks in their order."""
        self.is_stopped = False
        parked, self._parked = self._parked, []
        for each in parked:
            self.do(each)

    def kill(self) -> None:
        """End as by SIGKILL."""
        self.is_alive = False
        tasks, self._tasks = self._tasks, []
        for each in tasks:
            each.close()


def gather_signals(signals: list[Signal]) -> Awaitable[list[Any]]:
    """Wait for all signals, and return their values."""

    async def wait() -> list[Any]:
        return [await each for each in signals]

    return wait()
