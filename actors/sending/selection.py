"""Which queue a send goes to: round robin among the brokers that an isolation strategy ranks best. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raymq.actors.protocol import MessageQueue
from raymq.actors.sending.isolation import Isolation


@dataclass(slots=True)
class QueuePicker:
    """Round robin over a topic's queues, with what `isolation` knows. One per producer; `start` is its first index."""

    isolation: Isolation
    start: int = 0
    _next: dict[str, int] = field(default_factory=dict)

    def pick(self, queues: Sequence[MessageQueue], last: MessageQueue | None = None) -> MessageQueue:
        """The queue of the next try; `last` is the one that just failed.

        The best-ranked other broker's, round robin among those of the same rank; else another queue of that broker;
        else the same again: a send always goes somewhere. `queues` must not be empty.
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
        """Nobody sends to it any more; who does begins anew."""
        self._next.pop(topic, None)
