"""Send numbered messages through a cluster during kills, and account for each of them.

A message's number is its body. Every tenth fails at its first delivery, so that retries and the scheduler take part.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from raymq.client import ConsumeResult, Message, NotStored, OutcomeUnknown, Producer, ReceivedMessage, Retry

#: The delay level of the listener's retries (1 s).
RETRY_LEVEL = 1


@dataclass(slots=True)
class Account:
    """The outcomes of sends, and the arrived messages."""

    acknowledged: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    taken: Counter[int] = field(default_factory=Counter)
    failed_once: Counter[int] = field(default_factory=Counter)
    #: When each send began and ended (monotonic seconds).
    sent: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def lost(self) -> set[int]:
        """Acknowledged messages that did not arrive: must be empty."""
        return self.acknowledged - set(self.taken)

    @property
    def ghosts(self) -> set[int]:
        """Arrived messages that were refused or never sent: must be empty."""
        return set(self.taken) - self.acknowledged - self.unknown

    @property
    def duplicates(self) -> int:
        """Deliveries after the first successful one."""
        return sum(self.taken.values()) - len(self.taken)

    def line(self, what: str) -> str:
        """Return the account in one line."""
        retried = sum(self.failed_once.values())
        return (
            f"{what}: {len(self.acknowledged)} acknowledged, {len(self.unknown)} unknown, {len(self.refused)} refused, "
            f"{len(self.taken)} arrived, {len(self.lost)} not arrived, {self.duplicates} duplicates, {retried} retried"
        )


class Traffic:
    """Send with each producer on a thread until `stop`; `listener` is the consumer's."""

    def __init__(self, topic: str, producers: list[Producer]) -> None:
        self.account = Account()
        self._topic = topic
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._numbers = iter(range(10**9))
        self._threads = [threading.Thread(target=self._send, args=(producer,), daemon=True) for producer in producers]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a send did not keep to its budget"

    def listener(self, messages: list[ReceivedMessage]) -> list[ConsumeResult | Retry]:
        results: list[ConsumeResult | Retry] = []
        with self._lock:
            for message in messages:
                number = int(message.body)
                if number % 10 == 0 and message.reconsume_times == 0:
                    self.account.failed_once[number] += 1
                    results.append(Retry(RETRY_LEVEL))
                else:
                    self.account.taken[number] += 1
                    results.append(ConsumeResult.SUCCESS)
        return results

    def _send(self, producer: Producer) -> None:
        while not self._stopped.is_set():
            with self._lock:
                number = next(self._numbers)
            message = Message(self._topic, str(number).encode(), keys=[f"k{number}"])
            begun = time.monotonic()
            try:
                producer.send(message)
                outcome = self.account.acknowledged
            except OutcomeUnknown:
                outcome = self.account.unknown
            except NotStored:
                outcome = self.account.refused
            with self._lock:
                outcome.add(number)
                self.account.sent[number] = begun, time.monotonic()
            time.sleep(0.002)  # a steady load that leaves the two cores room
