"""Send or read messages on threads for some seconds, and measure it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from raymq.client import Message, MessageQueue, Producer, PullConsumer, RayMQError
from raymq.cluster.bench.latency_histogram import LatencyHistogram

#: How many sends of one thread may be without an answer, when they are gathered.
_WINDOW: Final = 1_000
_LOOK_SECONDS: Final = 0.2
_POLL_SECONDS: Final = 1.0


@dataclass(slots=True)
class LoadCounts:
    """What one thread has done so far."""

    messages: int = 0
    bytes: int = 0
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    #: The number of failed calls by the name of the error.
    failed: Counter[str] = field(default_factory=Counter)


class Worker(Protocol):
    """The work of one thread: it goes on until `ended` is set."""

    def __call__(self, counts: LoadCounts, ended: threading.Event) -> None:
        """Work and count."""


@dataclass(slots=True)
class LoadRun:
    """A run of several workers for some seconds.

    Args:
        on_progress: called a few times per second with the seconds so far, the messages and the bytes.
    """

    workers: Sequence[Worker]
    seconds: float
    on_progress: Callable[[float, int, int], None] = lambda _seconds, _messages, _bytes: None
    counts: list[LoadCounts] = field(default_factory=list)
    #: How long the run took.
    elapsed: float = 0.0

    def run(self) -> LoadCounts:
        """Run the workers until the time or a KeyboardInterrupt ends, and return the sums.

        Raises:
            RayMQError: a worker cannot go on.
        """
        ended = threading.Event()
        errors: list[BaseException] = []
        self.counts = [LoadCounts() for _ in self.workers]

        def work(worker: Worker, counts: LoadCounts) -> None:
            try:
                worker(counts, ended)
            except BaseException as error:  # noqa: BLE001 - raised on the caller's thread
                errors.append(error)
                ended.set()

        threads = [
            threading.Thread(target=work, args=each, name="raymq-bench", daemon=True)
            for each in zip(self.workers, self.counts, strict=True)
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            while (passed := time.monotonic() - began) < self.seconds and not ended.wait(
                min(_LOOK_SECONDS, self.seconds - passed)
            ):
                self.on_progress(passed, *self._so_far())
        except KeyboardInterrupt:  # what was measured so far is the result
            pass
        ended.set()
        for thread in threads:
            thread.join()
        self.elapsed = time.monotonic() - began
        if errors:
            raise errors[0]
        return self._sum()

    def _so_far(self) -> tuple[int, int]:
        return sum(each.messages for each in self.counts), sum(each.bytes for each in self.counts)

    def _sum(self) -> LoadCounts:
        messages, size = self._so_far()
        total = LoadCounts(messages, size)
        total.latency.merge(each.latency for each in self.counts)
        for each in self.counts:
            total.failed += each.failed
        return total


def single_sends(producer: Producer, topic: str, body: bytes) -> Worker:
    """Return a worker that sends one message after the other, and measures each call."""

    def work(counts: LoadCounts, ended: threading.Event) -> None:
        while not ended.is_set():
            began = time.perf_counter()
            try:
                producer.send(Message(topic, body))
            except RayMQError as error:
                _count_failure(counts, error)
                continue
            _count(counts, 1, len(body), time.perf_counter() - began)

    return work


def batch_sends(producer: Producer, topic: str, body: bytes, batch: int) -> Worker:
    """Return a worker that sends one batch after the other, and measures each call."""

    def work(counts: LoadCounts, ended: threading.Event) -> None:
        while not ended.is_set():
            messages = [Message(topic, body) for _ in range(batch)]
            began = time.perf_counter()
            try:
                producer.send_batch(messages)
            except RayMQError as error:
                _count_failure(counts, error)
                continue
            _count(counts, batch, batch * len(body), time.perf_counter() - began)

    return work


def gathered_sends(producer: Producer, topic: str, body: bytes) -> Worker:
    """Return a worker whose sends a producer with `linger` gathers.

    Each is measured until its answer.
    """

    def work(counts: LoadCounts, ended: threading.Event) -> None:
        room = threading.Semaphore(_WINDOW)
        lock = threading.Lock()

        def done(future: Future[object], began: float) -> None:
            seconds, error = time.perf_counter() - began, future.exception()
            with lock:  # callbacks may run on several threads
                if error is None:
                    _count(counts, 1, len(body), seconds)
                else:
                    counts.failed[type(error).__name__] += 1
            room.release()

        while not ended.is_set():
            if room.acquire(timeout=_LOOK_SECONDS):
                began = time.perf_counter()
                producer.send_async(Message(topic, body)).add_done_callback(
                    lambda future, began=began: done(future, began)  # type: ignore[misc]
                )
        producer.flush()
        for _ in range(_WINDOW):  # the callbacks of answered sends may still be running
            room.acquire(timeout=_POLL_SECONDS)

    return work


def repeated_reads(consumer: PullConsumer, queues: Sequence[MessageQueue], batch: int) -> Worker:
    """Return a worker that reads queues repeatedly from the beginning, and measures each call."""

    def work(counts: LoadCounts, ended: threading.Event) -> None:
        for queue in queues:
            consumer.seek(queue, "earliest")
        while not ended.is_set():
            for queue in queues:
                began = time.perf_counter()
                messages = consumer.poll(queue, batch, 0.0)
                if messages:
                    seconds = time.perf_counter() - began
                    _count(counts, len(messages), sum(len(each.body) for each in messages), seconds)
                else:
                    low, end = consumer.offsets(queue)
                    if low == end:
                        ended.wait(_LOOK_SECONDS)  # nothing is there yet
                    consumer.seek(queue, "earliest")

    return work


def _count(counts: LoadCounts, messages: int, size: int, seconds: float) -> None:
    counts.messages += messages
    counts.bytes += size
    counts.latency.add(seconds)


def _count_failure(counts: LoadCounts, error: RayMQError) -> None:
    """Count a failed call.

    Raise its error if no call could succeed, as for a topic that does not exist.
    """
    if not counts.messages and not error.retriable:
        raise error
    counts.failed[type(error).__name__] += 1
