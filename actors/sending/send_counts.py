"""Count the sends of a producer by topic and outcome.

The counts are plain attributes without a lock: CPython switches threads only at calls and jumps, so that adding a
number to an attribute is one step. Latencies are counted likewise: a `raymq.storage.histogram.Histogram` may lose
values that several threads observe, and is not faster.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from raymq.actors.errors import OutcomeUnknown

#: The upper bounds, in seconds, of the latencies that are counted together. Longer ones have a count of their own.
LATENCY_BOUNDS: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 3.0)


class TopicSends:
    """The sends of one topic.

    Attributes:
        not_stored, unknown: the sends by outcome; a batch that is sent together is one send.
        stored_messages, not_stored_messages, unknown_messages: their messages.
        retries: further tries.
        seconds: how long the sends took that were stored, in all.
        latencies: how many of them took at most each of `LATENCY_BOUNDS` and more than the one before; and how many
            took longer than all.
    """

    __slots__ = (
        *("latencies", "not_stored", "not_stored_messages", "retries", "seconds", "stored_messages"),
        *("unknown", "unknown_messages"),
    )

    def __init__(self) -> None:
        self.clear()

    @property
    def stored(self) -> int:
        """Return the number of sends that were stored."""
        return sum(self.latencies)

    def clear(self) -> None:
        """Set all counts to 0."""
        self.not_stored = self.unknown = 0
        self.stored_messages = self.not_stored_messages = self.unknown_messages = 0
        self.retries = 0
        self.seconds = 0.0
        self.latencies = [0] * (len(LATENCY_BOUNDS) + 1)


class SendCounts:
    """The sends of one producer, or of several with the same counts.

    Any thread may use it.
    """

    def __init__(self, of_topic: Callable[[str], TopicSends | None], others: TopicSends) -> None:
        """Initialize the counts.

        Args:
            of_topic: returns the counts of a topic, None if there are too many.
            others: the counts of all topics that have none of their own.
        """
        self._of_topic = of_topic
        self._others = others
        self._known: dict[str, TopicSends] = {}

    def stored(self, topic: str, messages: int, seconds: float) -> None:
        """Count a send that was stored after so many seconds."""
        counts = self._known.get(topic) or self._find(topic)
        counts.stored_messages += messages
        counts.seconds += seconds
        counts.latencies[bisect_left(LATENCY_BOUNDS, seconds)] += 1

    def failed(self, topic: str, messages: int, error: BaseException) -> None:
        """Count a send that ended with `error`."""
        counts = self._known.get(topic) or self._find(topic)
        if isinstance(error, OutcomeUnknown):
            counts.unknown += 1
            counts.unknown_messages += messages
        else:
            counts.not_stored += 1
            counts.not_stored_messages += messages

    def retried(self, topic: str) -> None:
        """Count a further try."""
        (self._known.get(topic) or self._find(topic)).retries += 1

    def _find(self, topic: str) -> TopicSends:
        found = self._of_topic(topic)
        if found is None:  # not remembered: there may be any number of such topics
            return self._others
        self._known[topic] = found
        return found
