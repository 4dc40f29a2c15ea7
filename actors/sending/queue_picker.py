"""Pick the queue of a send: round robin among the brokers with the best rank.

An isolation strategy ranks the brokers. The module performs no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.isolation import Isolation


@dataclass(slots=True)
class QueuePicker:
    """Round robin over a topic's queues, with the ranks of `isolation`.

    A producer has one picker; `start` is its first index.
    """

    isolation: Isolation
    start: int = 0
    _next: dict[str, int] = field(default_factory=dict)

    def pick(self, queues: Sequence[MessageQueue], last: MessageQueue | None = None) -> MessageQueue:
        """Return the queue of the next try; `last` is the queue that just failed.

        After a failure it is a queue of the best-ranked other broker, round robin among brokers of the same rank.
        Without another broker it is another queue of the same broker, else the same queue again. `queues` must not be
        empty.
        """
        topic = queues[0].topic
        first = self._next.get(topic, self.start)
        self._next[topic] = first + 1
        due = queues[first % len(queues)]
        if last is None and not self.isolation.rank(due.broker):
            return due
        turn = [queues[(first + step) % len(queues)] for step in range(len(queues))]
        if last is None:
            others = turn
        else:
            others = [queue for queue in turn if queue.broker != last.broker]
            if not others:
                return next((queue for queue in turn if queue != last), turn[0])
        ranks = {queue.broker: self.isolation.rank(queue.broker) for queue in others}
        return min(others, key=lambda queue: ranks[queue.broker])

    def forget(self, topic: str) -> None:
        """Drop the state of a topic that the producer does not use any more."""
        self._next.pop(topic, None)
