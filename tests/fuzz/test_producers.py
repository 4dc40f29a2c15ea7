"""Fuzz producers with linger: their reported outcomes are compared with the brokers' logs and the outbox.

Producers of all kinds (idempotent or not, with an outbox or none, with keys, queues or neither) send from several
threads to brokers that pause for a moment or are killed, and may be closed meanwhile. The clocks are real, so a seed
chooses the operations and not their results.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raymq.client import Admin, Connection, Message, MessageQueue, Producer, SendResult
from raymq.client.errors import ClientClosed, RayMQError
from raymq.client.produce.outbox_file import OutboxFile
from tests.fuzz.logs import bodies_of
from tests.fuzz.seeds import seeded, try_each
from tests.integration.conftest import Services

SENDERS = range(3)
KINDS = ("plain", "key", "queue")


@dataclass(frozen=True)
class Sent:
    """One send with its outcome."""

    sender: int
    kind: str
    body: bytes
    future: Future[SendResult]

    @property
    def result(self) -> SendResult | None:
        """Return the result; None if the send was refused."""
        return None if self.future.exception() else self.future.result()

    @property
    def kept(self) -> bool:
        """Return whether the outbox has the message, by the error."""
        return bool(getattr(self.future.exception(), "kept", False))


class ProducersFuzz:
    """Two brokers and a producer of one kind."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log: list[str] = []
        self._seed = seed
        self._random = random.Random(seed)
        self._outbox = directory / "outbox" if self._random.random() < 0.6 else None
        self._idempotent = self._random.random() < 0.5
        self._kinds = self._random.choice((*((kind,) for kind in KINDS), KINDS))
        self._services = Services(directory)
        self._ended = threading.Event()
        self._adding = threading.Lock()
        self._sent: list[Sent] = []

    def live(self) -> None:
        self._services.start()
        try:
            with Connection([self._services.name_server.address]) as mq:
                Admin(mq).create_topic("t", queues=2)
                queues = mq.run(mq.routes.get("t")).writable()
                with Connection([self._services.name_server.address]) as producers:
                    self._produce(producers, queues)
                late = wait([sent.future for sent in self._sent], 30.0).not_done
                assert not late, "sends of a closed producer without an outcome"
                self._services.loop.run(asyncio.sleep(0))  # paused brokers continue
                self._check(bodies_of(mq, "t"))
        finally:
            self._services.stop()

    def _produce(self, mq: Connection, queues: list[MessageQueue]) -> None:
        options: dict[str, Any] = {} if self._outbox is None else {"outbox": self._outbox}
        options |= {"linger": self._random.choice((0.001, 0.005, 0.05)), "idempotent": self._idempotent}
        options |= {"timeout": self._random.choice((1.0, 2.0, 4.0)), "retries": self._random.choice((0, 2))}
        self.log.append(f"{options} {self._kinds}")
        producer = Producer(mq, "p", **options)
        threads = [threading.Thread(target=self._send, args=(producer, sender, queues)) for sender in SENDERS]
        for thread in threads:
            thread.start()
        try:
            for _ in range(self._random.randint(1, 4)):
                self._ended.wait(self._random.uniform(0.05, 0.4))
                self._do(self._random.choice((self._stall, self._stall, self._crash, self._go_on)))
            if self._random.random() < 0.3:
                self._end(threads)
                producer.flush(10.0)
            elif self._random.random() < 0.6:
                self._do(self._stall)
            timeout = self._random.choice((0.0, 0.3, 1.0, 5.0))
            self.log.append(f"close {timeout}")
            producer.close(timeout)
        finally:
            self._end(threads)

    def _end(self, threads: list[threading.Thread]) -> None:
        self._ended.set()
        for thread in threads:
            thread.join()

    def _send(self, producer: Producer, sender: int, queues: list[MessageQueue]) -> None:
        """Send as a thread of the program."""
        random_ = random.Random(self._seed * 10 + sender)
        number = 0
        while not self._ended.wait(random_.choice((0.0, 0.001, 0.004))):
            message = Message("t", b"%d-%05d" % (sender, number))
            kind = random_.choice(self._kinds)
            try:
                timeout = random_.choice((None, None, 3.0))
                if kind == "queue":
                    future = producer.send_async(message, queue=queues[sender % len(queues)], timeout=timeout)
                else:
                    key = f"k{sender}" if kind == "key" else None
                    future = producer.send_async(message, sharding_key=key, timeout=timeout)
            except ClientClosed:
                return
            except RayMQError:  # the buffer is full
                continue
            number += 1
            with self._adding:
                self._sent.append(Sent(sender, kind, message.body, future))

    def _do(self, fault: Callable[[], None]) -> None:
        self.log.append(fault.__name__.strip("_"))
        fault()

    def _stall(self) -> None:
        """Pause all brokers for a moment."""
        self._services.loop.loop.call_soon_threadsafe(time.sleep, self._random.uniform(0.1, 1.5))

    def _crash(self) -> None:
        name = self._random.choice(self._services.names)
        self._services.crash_broker(name)
        self._ended.wait(self._random.uniform(0.0, 0.5))
        self._services.start_broker(name)

    def _go_on(self) -> None:
        pass

    def _check(self, logs: dict[MessageQueue, list[bytes]]) -> None:
        times = Counter(body for bodies in logs.values() for body in bodies)
        last: dict[tuple[int, MessageQueue], int] = {}
        queue_of: dict[int, MessageQueue] = {}
        for sent in self._sent:
            if (result := sent.result) is None:
                continue
            assert logs[result.queue][result.queue_offset] == sent.body, f"{sent.body!r} is not where it is said to be"
            assert times[sent.body] == 1 or not self._idempotent, f"{sent.body!r} is stored twice"
            if sent.kind == "key":
                assert queue_of.setdefault(sent.sender, result.queue) == result.queue, f"{sent.body!r} left its key's"
            if self._kinds in {("key",), ("queue",)}:
                lane = sent.sender, result.queue
                assert last.get(lane, -1) < result.queue_offset, f"{sent.body!r} came before an older one"
                last[lane] = result.queue_offset
        kept = {sent.body for sent in self._sent if sent.kept}
        assert not kept or self._outbox is not None
        if self._outbox is not None:
            refused = {sent.body: repr(sent.future.exception()) for sent in self._sent if sent.result is None}
            assert not {body: error for body, error in refused.items() if body not in kept}, "refused, and not kept"
            waiting = OutboxFile(self._outbox, read_only=True)
            left = {message.body for batch in waiting.batches() for message in batch.messages()}
            waiting.close()
            assert kept - left - times.keys() == set(), "said to be kept, and neither in the outbox nor stored"


@seeded(many=40)
def test_reported_send_outcomes_match_logs(tmp_path: Path, seeds: range) -> None:
    try_each(seeds, tmp_path, ProducersFuzz)
