"""Simulate a network: requests and connections that are lost, delayed and cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.actors.replication.model.virtual_time import Process, Scheduler, Signal


class Network:
    """Deliver requests and frames between processes.

    Latencies differ from message to message, so that two connections overtake each other.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._chance = scheduler.chance
        #: Directions (source, target) in which all traffic is lost.
        self.cut: set[tuple[str, str]] = set()
        #: The share of requests, of answers, and of frames (with their connection) that get lost.
        self.loss = 0.0
        self.is_slow = False
        #: The share of frames in which a bit is flipped.
        self.flips = 0.0
        self.processes: dict[str, Process] = {}
        self.services: dict[str, Any] = {}

    def latency(self) -> float:
        return self._chance.choice((0.001, 0.002, 0.005, 0.02, 0.02, 0.4 if self.is_slow else 0.15))

    def arrives(self, source: str, target: str) -> bool:
        return (source, target) not in self.cut and self._chance.random() >= self.loss

    def request(self, source: Process, target: str, name: str, *arguments: Any) -> Signal:
        """Return a signal with the answer or refusal of `target`, never set if lost."""
        answered = Signal()

        def arrive() -> None:
            process = self.processes.get(target)
            if process is None or not process.is_alive:
                return
            service = self.services[target]

            def handle() -> None:
                ended = process.spawn(getattr(service, name)(*arguments))
                ended.then(lambda: answer(ended.value))

            process.do(handle)

        def answer(value: Any) -> None:
            if self.arrives(target, source.name):
                self._scheduler.after(self.latency(), lambda: answered.set(value), source)

        if self.arrives(source.name, target):
            self._scheduler.after(self.latency(), arrive)
        return answered

    def connect(self, source: Process, target: str, receive: Callable[[bytes], None]) -> Line:
        """Open a connection; `receive` gets what the other end sends."""
        line = Line(self, source, target, receive)
        if self.arrives(source.name, target):
            self._scheduler.after(self.latency(), line.accept)
        return line

    def flipped(self, content: bytes) -> bytes:
        if self._chance.random() >= self.flips:
            return content
        damaged = bytearray(content)
        damaged[self._chance.randrange(len(content))] ^= 1 << self._chance.randrange(8)
        return bytes(damaged)


class Line:
    """Model one connection: content arrives whole and in order, or the line is dead."""

    def __init__(self, network: Network, source: Process, target: str, receive: Callable[[bytes], None]) -> None:
        self._network = network
        self._scheduler = source.scheduler
        self._ends: dict[bool, Process | None] = {True: source, False: None}
        self._names = {True: source.name, False: target}
        self._receive: dict[bool, Callable[[bytes], None]] = {True: receive}
        self._next_at = {True: 0.0, False: 0.0}
        self.is_open = True

    def accept(self) -> None:
        process = self._network.processes.get(self._names[False])
        if process is None or not process.is_alive:
            self.close()
            return
        self._ends[False] = process
        service = self._network.services[self._names[False]]
        process.do(lambda: self._receive.__setitem__(False, service.accept(self)))

    def send(self, content: bytes, *, by_source: bool) -> None:
        if not self.is_open:
            return
        if not self._network.arrives(self._names[by_source], self._names[not by_source]):
            self.close()
            return
        at = max(self._scheduler.now + self._network.latency(), self._next_at[by_source] + 0.0001)
        self._next_at[by_source] = at
        content = self._network.flipped(content)
        # Without an owner: content for a stopped process stays in its socket until the process continues.
        self._scheduler.after(at - self._scheduler.now, lambda: self._arrive(content, by_source=by_source))

    def _arrive(self, content: bytes, *, by_source: bool) -> None:
        process = self._ends[not by_source]
        if process is None or not process.is_alive:
            self.close()
            return

        # Content sent before the line broke may still be in the socket, and is read.
        process.do(lambda: self._receive[not by_source](content) if (not by_source) in self._receive else None)

    def close(self) -> None:
        self.is_open = False
