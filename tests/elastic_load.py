"""Continuous load during broker changes, with the longest pauses of queues and consumers."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Self

from raymq.client import (
    Connection,
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageQueue,
    NotStored,
    OutcomeUnknown,
    PermissionDenied,
    Producer,
    PushConsumer,
    RayMQError,
    ReceivedMessage,
)
from tests.chaos.traffic import Account
from tests.polling import poll_until

_PAUSE_SECONDS = 0.01
#: The timeout of a send; afterwards the queue is tried again at once.
_SEND_SECONDS = 1.5


class ContinuousLoad:
    """Producers and a consumer that run until the end of `with`.

    One producer writes each queue in turn, the other any queue. A message's body is its number in
    `tests.chaos.traffic`.
    """

    def __init__(self, mq: Connection, topic: str) -> None:
        self.account = Account()
        self._mq = mq
        self._topic = topic
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._number = 0
        #: The time of the last write to each queue; below, the longest pause between two writes.
        self._written: dict[MessageQueue, float] = {}
        self.longest_unwritten: dict[MessageQueue, float] = defaultdict(float)
        self._acknowledged_at: dict[int, float] = {}
        self._taken_at: dict[int, float] = {}
        self._producers = [Producer(mq, f"load-{name}", timeout=_SEND_SECONDS) for name in ("chosen", "any")]
        self._consumer = PushConsumer(mq, "load", {topic: "*"}, self._take, consume_from=ConsumeFrom.FIRST)
        self._threads = [
            threading.Thread(target=self._write_each_queue, args=(self._producers[0],), daemon=True),
            threading.Thread(target=self._write_any, args=(self._producers[1],), daemon=True),
        ]

    def __enter__(self) -> Self:
        self._consumer.start()
        for thread in self._threads:
            thread.start()
        poll_until(lambda: len(self.account.taken) > 20, 60, "the load has begun")
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
        self._consumer.shutdown()
        for producer in self._producers:
            producer.close()

    def finish(self) -> None:
        """Stop sending, and wait until all acknowledged messages were delivered."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        poll_until(lambda: not self.account.lost, 60, "all that was acknowledged arrives")
        assert self.account.ghosts == set()

    def await_progress(self, messages: int = 30) -> None:
        """Wait until so many more messages were acknowledged and delivered."""
        goal = len(self.account.acknowledged) + messages
        poll_until(lambda: len(self.account.acknowledged) >= goal, 60, "producers go on")
        with self._lock:
            sent = set(self.account.acknowledged)
        poll_until(lambda: sent <= set(self.account.taken), 60, "consumers go on")

    @property
    def written_queues(self) -> set[MessageQueue]:
        """Return the queues that were written so far and are not excluded."""
        with self._lock:
            return set(self._written)

    @property
    def longest_pause(self) -> float:
        """Return the longest time without a write to a queue, in seconds."""
        with self._lock:
            now = [time.monotonic() - at for at in self._written.values() if not self._stopped.is_set()]
            return max([0.0, *now, *self.longest_unwritten.values()])

    @property
    def longest_wait(self) -> float:
        """Return the longest time from a message's acknowledgement to its delivery, in seconds."""
        with self._lock:
            known = self._acknowledged_at.keys() & self._taken_at.keys()
            return max((self._taken_at[each] - self._acknowledged_at[each] for each in known), default=0.0)

    def exclude_broker(self, broker: str) -> None:
        """Exclude a broker's queues from the pauses, as they are no longer written."""
        with self._lock:
            for queue in [each for each in self._written if each.broker == broker]:
                del self._written[queue]

    def reset_pauses(self) -> None:
        """Measure pauses from now on."""
        with self._lock:
            self.longest_unwritten.clear()
            self._written.clear()
            self._acknowledged_at.clear()
            self._taken_at.clear()

    def line(self, what: str) -> str:
        """Return a summary in one line."""
        times = f"longest pause of a queue {self.longest_pause:.2f} s, of a consumer {self.longest_wait:.2f} s"
        return f"{self.account.line(what)}; {times}"

    def _take(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        now = time.monotonic()
        with self._lock:
            for message in messages:
                number = int(message.body)
                self.account.taken[number] += 1
                self._taken_at.setdefault(number, now)
        return ConsumeResult.SUCCESS

    def _write_each_queue(self, producer: Producer) -> None:
        while not self._stopped.is_set():
            try:
                route = self._mq.run(self._mq.routes.get(self._topic))
            except RayMQError:
                continue
            for queue in route.writable():
                if self._send(producer, queue):
                    now = time.monotonic()
                    with self._lock:
                        since = now - self._written.get(queue, now)
                        self.longest_unwritten[queue] = max(self.longest_unwritten[queue], since)
                        self._written[queue] = now
            self._stopped.wait(_PAUSE_SECONDS)

    def _write_any(self, producer: Producer) -> None:
        while not self._stopped.is_set():
            self._send(producer, None)
            self._stopped.wait(_PAUSE_SECONDS)

    def _send(self, producer: Producer, queue: MessageQueue | None) -> bool:
        with self._lock:
            self._number += 1
            number = self._number
        begun = time.monotonic()
        try:
            producer.send(Message(self._topic, b"%d" % number), queue=queue)
            outcome = self.account.acknowledged
        except OutcomeUnknown:
            outcome = self.account.unknown
        except (NotStored, PermissionDenied):
            outcome = self.account.refused
        ended = time.monotonic()
        with self._lock:
            outcome.add(number)
            self.account.sent[number] = begun, ended
            if outcome is self.account.acknowledged:
                self._acknowledged_at[number] = ended
        return outcome is self.account.acknowledged
