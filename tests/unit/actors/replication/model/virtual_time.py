"""Processes in virtual time: coroutines that sleep, are stopped, and are killed, one event after the other."""

from __future__ import annotations

import heapq
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any


class Signal:
    """Something that is waited for, by coroutines and by callbacks."""

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
    """The order of all events. One seed, one order."""

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
    """One life of a program on a machine: what it does is over when it is killed, and waits while it is stopped."""

    def __init__(self, scheduler: Scheduler, name: str, speed: float = 1.0) -> None:
        """`speed`: how fast the machine's clock runs."""
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
        """Its clock stands still from now on: that of a machine that counts no sleep, or is plainly wrong."""
        self._clock_stands_at = self.clock()

    def set_right(self) -> None:
        """Its clock goes again, and has jumped to the time."""
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
        """Done when `signal` is, or after so many seconds; whether the signal was."""
        made = Signal()
        signal.then(lambda: made.set(True))
        self.after(seconds, lambda: made.set(False))
        return made

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Signal:
        """Run a coroutine; done with what it returns."""
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
        """SIGSTOP."""
        self.is_stopped = True

    def go_on(self) -> None:
        """SIGCONT: everything that was due meanwhile is done now, in its order."""
        self.is_stopped = False
        parked, self._parked = self._parked, []
        for each in parked:
            self.do(each)

    def kill(self) -> None:
        """SIGKILL."""
        self.is_alive = False
        tasks, self._tasks = self._tasks, []
        for each in tasks:
            each.close()


def gathered(signals: list[Signal]) -> Awaitable[list[Any]]:
    """What all of them are done with."""

    async def wait() -> list[Any]:
        return [await each for each in signals]

    return wait()
