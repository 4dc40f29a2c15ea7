"""Send under load: each thread sends one kind of messages, call after call, and records the outcomes."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from raymq.client import Connection, InvalidInput, Message, NotStored, OutcomeUnknown, Producer, SendResult, SendStatus
from raymq.client.errors import PermissionDenied, QueueNotFound, TopicNotFound
from tests.chaos.failover.recorded import OK, REFUSED, UNKNOWN, HistoryFile, Place, Sent

ORDERED, BATCHED, DELAYED, POPPED, NUMBERED = "ordered", "batched", "delayed", "popped", "numbered"
TOPICS: Final = (ORDERED, BATCHED, DELAYED, POPPED, NUMBERED)
#: The distance of the message numbers of two threads.
_APART: Final = 100_000_000
_NOT_STORED: Final = (NotStored, InvalidInput, TopicNotFound, QueueNotFound, PermissionDenied)


@dataclass(slots=True)
class Tally:
    """The outcomes of all threads so far. Thread-safe."""

    outcomes: Counter[str] = field(default_factory=Counter)
    #: When each broker last acknowledged something.
    last_ok: dict[str, float] = field(default_factory=dict)
    #: The acknowledged numbers, by topic.
    acknowledged: dict[str, set[int]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, sent: Sequence[Sent]) -> None:
        with self._lock:
            for each in sent:
                self.outcomes[each.outcome] += 1
                if each.outcome == OK:
                    self.acknowledged[each.topic].add(each.number)
                    if each.place is not None:
                        self.last_ok[each.place.broker] = each.ended


class Senders:
    """Threads that send until `stop`."""

    def __init__(
        self, connect: Callable[[], Connection], history: HistoryFile, tally: Tally, *, pause: float, seed: int
    ) -> None:
        """`pause`: the approximate seconds between two calls of a thread."""
        self._history = history
        self._tally = tally
        self._pause = pause
        self._stopped = threading.Event()
        self._mq = connect()
        kinds = (self._ordered, self._ordered, self._batched, self._delayed, self._popped, self._numbered)
        self._threads = [
            threading.Thread(
                target=kind,
                name=kind.__name__,
                args=(itertools.count((index + 1) * _APART), random.Random(f"{seed} {index}")),
                daemon=True,
            )
            for index, kind in enumerate(kinds)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 60.0) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout)
            assert not thread.is_alive(), f"a send of {thread.name} does not end"
        self._mq.close()

    def _turns(self, chance: random.Random) -> Iterator[None]:
        while not self._stopped.wait(self._pause * (0.5 + chance.random())):
            yield

    def _ordered(self, numbers: Iterator[int], chance: random.Random) -> None:
        """Send with a few keys in turn; a key's next message follows the answer to its last one."""
        keys = [f"{threading.get_ident()}-{each}" for each in range(4)]
        with Producer(self._mq, "chaos-ordered") as producer:
            for _ in self._turns(chance):
                number, key = next(numbers), chance.choice(keys)
                message = _message(ORDERED, number, chance)
                self._note([number], ORDERED, lambda m=message, k=key: [producer.send(m, sharding_key=k)], key=key)

    def _batched(self, numbers: Iterator[int], chance: random.Random) -> None:
        with Producer(self._mq, "chaos-batched") as producer:
            for _ in self._turns(chance):
                batch = [next(numbers) for _ in range(chance.choice((2, 10, 40)))]
                messages = [_message(BATCHED, number, chance) for number in batch]
                self._note(batch, BATCHED, lambda m=messages: producer.send_batch(m))

    def _delayed(self, numbers: Iterator[int], chance: random.Random) -> None:
        with Producer(self._mq, "chaos-delayed") as producer:
            for _ in self._turns(chance):
                number, due = next(numbers), time.time() + chance.uniform(0.2, 6.0)
                if chance.random() < 0.2:
                    message, due = Message(DELAYED, b"%d" % number, delay_level=1), time.time() + 1.0
                else:
                    message = Message(DELAYED, b"%d" % number, deliver_at=due)
                self._note([number], DELAYED, lambda m=message: [producer.send(m)], due=due)

    def _popped(self, numbers: Iterator[int], chance: random.Random) -> None:
        with Producer(self._mq, "chaos-popped") as producer:
            for _ in self._turns(chance):
                number = next(numbers)
                self._note([number], POPPED, lambda n=number: [producer.send(_message(POPPED, n, chance))])

    def _numbered(self, numbers: Iterator[int], chance: random.Random) -> None:
        """Send batches of an idempotent producer, whose own retries store nothing twice."""
        with Producer(self._mq, "chaos-numbered", idempotent=True, timeout=10.0) as producer:
            for _ in self._turns(chance):
                batch = [next(numbers) for _ in range(chance.choice((1, 3, 20)))]
                messages = [_message(NUMBERED, number, chance) for number in batch]
                self._note(batch, NUMBERED, lambda m=messages: producer.send_batch(m), once=True)

    def _note(
        self,
        numbers: Sequence[int],
        topic: str,
        send: Callable[[], Sequence[SendResult]],
        *,
        key: str = "",
        due: float = 0.0,
        once: bool = False,
    ) -> None:
        began = time.monotonic()
        outcome, why = OK, ""
        places: list[Place | None] = [None] * len(numbers)
        try:
            results = list(send())
        except OutcomeUnknown as error:
            outcome, why = UNKNOWN, f"{error}"
        except _NOT_STORED as error:
            outcome, why = REFUSED, f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - any other error promises nothing
            outcome, why = UNKNOWN, f"unexpected {error!r}"
        else:
            if not due:
                places = [_place(each) for each in results]
            weak = {each.status.name for each in results if each.status is not SendStatus.SEND_OK}
            if weak:
                outcome, why = UNKNOWN, ", ".join(sorted(weak))
        ended = time.monotonic()
        sent = [
            Sent(number, topic, began, ended, outcome, key, due, once, place, why)
            for number, place in zip(numbers, places, strict=True)
        ]
        self._history.write(sent)
        self._tally.add(sent)


def _message(topic: str, number: int, chance: random.Random) -> Message:
    return Message(topic, b"%d" % number, keys=[f"k{number}"], properties={"pad": "x" * chance.choice((1, 100, 900))})


def _place(result: SendResult) -> Place:
    return Place(result.queue.topic, result.queue.broker, result.queue.queue_id, result.queue_offset)
