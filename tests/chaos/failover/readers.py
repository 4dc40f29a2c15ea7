"""Consume under load: one thread pulls and commits, two pop and acknowledge, a group listens; all is recorded."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Final

from raymq.client import (
    Connection,
    ConsumeFrom,
    ConsumeResult,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    RayMQError,
    ReceivedMessage,
    Retry,
    SimpleConsumer,
)
from raymq.client.errors import OffsetOutOfRange
from tests.chaos.failover.recorded import (
    OK,
    REFUSED,
    UNKNOWN,
    Acknowledged,
    Committed,
    HistoryFile,
    Place,
    Seen,
    SentBack,
)
from tests.chaos.failover.senders import BATCHED, DELAYED, NUMBERED, ORDERED, POPPED

#: The invisible time of popped messages.
LENT_SECONDS: Final = 8.0
#: The longest time between a delivery and the return of the call.
_KEPT_SECONDS: Final = 3.0
#: One of so many popped messages is not acknowledged the first time.
_LEFT_ALONE: Final = 20


class Readers:
    """Threads and members that consume until `stop`."""

    def __init__(self, connect: Callable[[], Connection], history: HistoryFile, *, seed: int) -> None:
        self._history = history
        self._mq = connect()
        self._stopped = threading.Event()
        self._seed = seed
        #: The messages that each group got, or acknowledged if it does.
        self.done: dict[str, set[int]] = defaultdict(set)
        #: Unexpected errors, which end nothing.
        self.troubles: list[str] = []
        self._threads = [
            threading.Thread(target=self._kept_alive, args=(work,), name=work.__name__, daemon=True)
            for work in (self._pull, self._pop, self._pop)
        ]
        self._push = PushConsumer(
            self._mq, "chaos-push", {BATCHED: "*"}, self._listen, batch_size=32, consume_from=ConsumeFrom.FIRST
        )

    def start(self) -> None:
        self._push.start()
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 60.0) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout)
            assert not thread.is_alive(), f"{thread.name} does not end"
        self._push.shutdown()
        self._mq.close()

    def _kept_alive(self, work: Callable[[random.Random], None]) -> None:
        """Recreate a consumer that ends with an error, as a program would."""
        chance = random.Random(f"{self._seed} {threading.get_ident()}")
        while not self._stopped.is_set():
            try:
                work(chance)
            except RayMQError as error:
                self.troubles.append(f"{work.__name__}: {type(error).__name__}: {error}")
                self._stopped.wait(0.2)

    # -- pulling --------------------------------------------------------------------------------------------------

    def _pull(self, chance: random.Random) -> None:
        """Read the queues of three topics in turn, and commit what was read.

        A broker that is down while the queues are listed is missing in the route, and returns later.
        """
        with PullConsumer(self._mq, "chaos-pull") as consumer:
            while not self._stopped.is_set():
                for queue in [queue for topic in (ORDERED, NUMBERED, DELAYED) for queue in consumer.queues(topic)]:
                    if self._stopped.is_set():
                        break
                    self._pull_one(consumer, queue, chance)

    def _pull_one(self, consumer: PullConsumer, queue: MessageQueue, chance: random.Random) -> None:
        began = time.monotonic()
        try:
            found = consumer.poll(queue, 64, timeout=0.1)
        except OffsetOutOfRange as error:
            self._sent_back(queue, consumer.position(queue), f"read: {error}")
            consumer.seek(queue, "earliest")
            return
        except RayMQError:
            self._stopped.wait(0.1)
            return
        self._seen(found, "chaos-pull", "pull", began)
        if found:
            self._commit(consumer, queue, found[-1].queue_offset + 1)
        if chance.random() < 0.2:
            self._ask(consumer, queue)

    def _commit(self, consumer: PullConsumer, queue: MessageQueue, offset: int) -> None:
        began, outcome = time.monotonic(), OK
        try:
            consumer.commit(queue, offset)
        except OffsetOutOfRange as error:
            outcome = REFUSED
            self._sent_back(queue, offset, f"commit: {error}")
        except RayMQError:
            outcome = UNKNOWN
        self._committed(queue, offset, began, outcome, writes=True)

    def _ask(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        began = time.monotonic()
        try:
            offset = consumer.committed(queue)
        except RayMQError:
            return
        self._committed(queue, -1 if offset is None else offset, began, OK, writes=False)

    def _committed(self, queue: MessageQueue, offset: int, began: float, outcome: str, *, writes: bool) -> None:
        place = (queue.topic, queue.broker, queue.queue_id)
        self._history.write([Committed("chaos-pull", *place, offset, began, time.monotonic(), outcome, writes)])

    def _sent_back(self, queue: MessageQueue, offset: int, why: str) -> None:
        place = (queue.topic, queue.broker, queue.queue_id, offset)
        self._history.write([SentBack("chaos-pull", *place, time.monotonic(), why)])

    # -- popping --------------------------------------------------------------------------------------------------

    def _pop(self, chance: random.Random) -> None:
        with SimpleConsumer(self._mq, "chaos-pop", {POPPED: "*"}) as consumer:
            while not self._stopped.is_set():
                began = time.monotonic()
                try:
                    found = consumer.receive(16, LENT_SECONDS, 0.5)
                except RayMQError:
                    self._stopped.wait(0.1)
                    continue
                self._seen(found, "chaos-pop", "pop", began, until=began + LENT_SECONDS - _KEPT_SECONDS)
                for message in found:
                    if message.reconsume_times or chance.randrange(_LEFT_ALONE):
                        self._acknowledge(consumer, message)

    def _acknowledge(self, consumer: SimpleConsumer, message: ReceivedMessage) -> None:
        began = time.monotonic()
        try:
            outcome = OK if consumer.ack(message) else REFUSED
        except RayMQError:
            outcome = UNKNOWN
        number = int(message.body)
        done = Acknowledged(number, _place(message), "chaos-pop", began, time.monotonic(), outcome)
        self._history.write([done])
        if outcome == OK:
            self.done["chaos-pop"].add(number)

    # -- listening ------------------------------------------------------------------------------------------------

    def _listen(self, messages: list[ReceivedMessage]) -> ConsumeResult | Retry:
        self._seen(messages, "chaos-push", "push", time.monotonic())
        return ConsumeResult.SUCCESS

    def _seen(self, found: list[ReceivedMessage], group: str, how: str, began: float, until: float = 0.0) -> None:
        ended, wall = time.monotonic(), time.time()
        self._history.write(
            Seen(int(message.body), _place(message), group, how, began, ended, wall, until) for message in found
        )
        if how != "pop":
            self.done[group].update(int(message.body) for message in found)


def _place(message: ReceivedMessage) -> Place:
    return Place(message.queue.topic, message.queue.broker, message.queue.queue_id, message.queue_offset)
