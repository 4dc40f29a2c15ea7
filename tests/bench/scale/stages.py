"""A broker gets more and more, and is measured each time: topics, timers, messages, connections; then its starts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import psutil

from raymq.client import Message, MessageQueue
from tests.bench.placement import apart
from tests.bench.processor_time import processor_us
from tests.bench.scale.brokers import NAME, Broker, OwnBroker, held_connections
from tests.bench.scale.plain_client import PlainClient
from tests.bench.scale.process_figures import descriptors, mappings, memory_mib, processor_us_a_second
from tests.bench.scale.rows import Row, RowCollector
from tests.bench.scale.size import Size
from tests.polling import poll_until

PART: Final = "one broker"
HOUR_MS: Final = 3_600_000
_BATCH: Final = 100
#: What is sent just before SIGKILL, of all messages: it is in no checkpoint.
_LATE: Final = 50
#: A topic and the number of one of its queues.
_Queue = tuple[str, int]


class Stages:
    """The rows of one broker."""

    def __init__(self, broker: Broker, collector: RowCollector) -> None:
        self._broker = broker
        self._size: Size = broker.size
        self._teller = collector
        self._random = random.Random(18)

    def run(self) -> None:
        """All stages, from an empty directory on; the broker runs at the end."""
        broker, size, tell = self._broker, self._size, self._teller
        broker.make_topics(1)
        tell.add([self._row("empty", "start", broker.start(), "s")])
        self._measure("empty", topics=1)
        broker.stop()
        broker.make_topics(size.topics)
        tell.add([self._row(self._topics, "start", broker.start(), "s")])
        self._measure(self._topics)
        with tell.step(f"{broker.name}: timers", size.timers) as advance, self._timed("timers", size.timers):
            self._add_timers(advance)
        self._measure(self._timers)
        with tell.step(f"{broker.name}: messages", size.sent) as advance, self._timed("messages", size.sent):
            broker.fill(advance)
        self._measure(self._messages)
        with tell.step(f"{broker.name}: connections"), held_connections(broker.address, size.connections):
            self._measure(self._connections)
        self._starts()

    @property
    def _topics(self) -> str:
        return f"{self._size.topics:,} topics of {self._size.queues} queues"

    @property
    def _timers(self) -> str:
        return f"+ {self._size.timers:,} timers"

    @property
    def _messages(self) -> str:
        return f"+ {self._size.sent:,} messages"

    @property
    def _connections(self) -> str:
        return f"+ {self._size.connections:,} connections"

    def _starts(self) -> None:
        broker, tell = self._broker, self._teller
        with tell.step(f"{broker.name}: stop and start"):
            stopped = broker.stop()
            started = broker.start()
        stage = "after a clean stop"
        tell.add([self._row(stage, "stop", stopped, "s"), self._row(stage, "start", started, "s")])
        tell.add(self._memory(stage))
        with PlainClient(broker.address, self._size.body_bytes) as client:
            queues = self._some_queues(max(1, self._size.sent // _LATE // _BATCH))
            with tell.step(f"{broker.name}: more messages"):
                sum(client.send_batches(queues, _BATCH))
        broker.kill()
        with tell.step(f"{broker.name}: start after SIGKILL"):
            started = broker.start()
        stage = "after SIGKILL"
        tell.add([self._row(stage, "start", started, "s")])
        tell.add(self._memory(stage))

    def _add_timers(self, advance: Callable[[int], None]) -> None:
        now_ms = time.time_ns() // 1_000_000
        times = (now_ms + HOUR_MS + self._random.randrange(24 * HOUR_MS) for _ in range(self._size.timers))
        with PlainClient(self._broker.address, self._size.body_bytes) as client:
            for done in client.send_timers("t0", times):
                advance(done)

    # -- what is measured at each stage

    def _measure(self, stage: str, *, topics: int | None = None) -> None:
        tell = self._teller
        with tell.step(f"{self._broker.name}, {stage}: measured"):
            tell.add(self._memory(stage))
            tell.add(self._idle(stage))
            tell.add(self._latencies(stage, topics or self._size.topics))

    def _memory(self, stage: str) -> Iterator[Row]:
        pid = self._broker.pid
        for name, mib in memory_mib(pid).items():
            yield self._row(stage, name, mib, "MiB")
        yield self._row(stage, "descriptors", descriptors(pid), "")
        yield self._row(stage, "mappings", mappings(pid), "")
        yield self._row(stage, "threads", psutil.Process(pid).num_threads(), "")

    def _idle(self, stage: str) -> Iterator[Row]:
        used = processor_us_a_second({"": self._broker.pid}, self._size.idle_seconds)[""]
        yield self._row(stage, "CPU, nobody asks", used / 1000, "ms/s")

    def _latencies(self, stage: str, topics: int) -> Iterator[Row]:
        broker, samples = self._broker, self._size.samples
        with PlainClient(broker.address, self._size.body_bytes) as client:
            yield from self._calls(stage, "send", lambda queue: client.send(*queue), self._some_queues(samples, topics))
            fed = self._some_queues(max(1, samples // 5), topics)
            sum(client.send_batches(fed, _BATCH))
            before = processor_us(broker.pid)
            sent = sum(client.send_batches(fed, _BATCH))
            used = processor_us(broker.pid) - before
            yield self._row(stage, f"CPU of a message, batches of {_BATCH}", used / sent, "us")
            poll_until(lambda: client.fetch(*fed[-1]))  # a queue's entries may come behind the answer
            yield from self._calls(stage, "fetch of 32", lambda queue: client.fetch(*queue), fed * 5)
        if isinstance(broker, OwnBroker):
            yield from self._own_client(stage, broker, topics)

    def _own_client(self, stage: str, broker: OwnBroker, topics: int) -> Iterator[Row]:
        body = b"x" * self._size.body_bytes
        with broker.producer() as producer:

            def send(queue: _Queue) -> None:
                topic, queue_id = queue
                producer.send(Message(topic, body), queue=MessageQueue(topic, NAME, queue_id))

            # Its routes of the topics are known after the first calls.
            queues = self._some_queues(max(1, self._size.samples // 10), topics) * 10
            yield from self._calls(stage, "send by our producer", send, queues)

    def _calls(
        self, stage: str, name: str, call: Callable[[_Queue], object], queues: Sequence[_Queue]
    ) -> Iterator[Row]:
        """p50 and p99 of a call to these queues, and its processor time in the broker; a tenth of them warms up."""
        pid = self._broker.pid
        for queue in queues[: max(1, len(queues) // 10)]:
            call(queue)
        times: list[float] = []
        with apart(pid):
            before = processor_us(pid)
            for queue in queues:
                began = time.perf_counter()
                call(queue)
                times.append((time.perf_counter() - began) * 1e6)
            used = processor_us(pid) - before
        found: npt.NDArray[np.float64] = np.percentile(times, (50, 99))
        yield self._row(stage, f"{name}, p50", float(found[0]), "us")
        yield self._row(stage, f"{name}, p99", float(found[1]), "us")
        yield self._row(stage, f"CPU of a {name}", used / len(queues), "us")

    def _some_queues(self, count: int, topics: int | None = None) -> list[_Queue]:
        below, queues = topics or self._size.topics, self._size.queues
        return [(f"t{self._random.randrange(below)}", self._random.randrange(queues)) for _ in range(count)]

    def _timed(self, what: str, count: int) -> _Timed:
        return _Timed(self, what, count)

    def _row(self, stage: str, name: str, value: float, unit: str) -> Row:
        return Row(PART, self._broker.name, stage, name, value, unit)

    def tell_filling(self, what: str, count: int, seconds: float, cpu_us: float) -> None:
        """How long it took to take so many."""
        stage = self._timers if what == "timers" else self._messages
        self._teller.add(
            [
                self._row(stage, f"taking the {what}", seconds, "s"),
                self._row(stage, f"CPU of one of the {what}", cpu_us / max(1, count), "us"),
            ]
        )

    @property
    def pid(self) -> int:
        """Of the broker."""
        return self._broker.pid


class _Timed:
    """Seconds and the broker's processor time within a `with` block."""

    def __init__(self, stages: Stages, what: str, count: int) -> None:
        self._stages, self._what, self._count = stages, what, count

    def __enter__(self) -> None:
        self._began, self._before = time.monotonic(), processor_us(self._stages.pid)

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is None:
            seconds = time.monotonic() - self._began
            self._stages.tell_filling(self._what, self._count, seconds, processor_us(self._stages.pid) - self._before)
