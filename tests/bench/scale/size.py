"""How much a broker gets, and what of it fits on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

#: What a message of 100 bytes takes on the disk, with its entries in the queue and the index; RocketMQ's takes as much.
MESSAGE_BYTES: Final = 270
#: A timer's message, its entry in the wheel and in the index.
TIMER_BYTES: Final = 450
#: The page that the first entry of a queue takes, and its folder.
QUEUE_BYTES: Final = 8 << 10
#: Room that is left alone.
_SPARE_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything.

    Attributes:
        queues: of each topic.
        rounds: each queue gets its messages in so many batches, one after each round over all queues.
        samples: calls of which the latency is told.
        idle_seconds: for how long a broker is watched that nobody asks anything.
        brokers: of each of the clusters that get one load.
    """

    topics: int = 10_000
    queues: int = 8
    messages: int = 50_000_000
    timers: int = 1_000_000
    connections: int = 5_000
    body_bytes: int = 100
    rounds: int = 4
    samples: int = 2_000
    idle_seconds: float = 10.0
    brokers: tuple[int, ...] = (1, 2, 4)

    @property
    def batch(self) -> int:
        """Messages of a batch, so that all queues get as many."""
        return max(1, -(-self.messages // (self.topics * self.queues * self.rounds)))

    @property
    def sent(self) -> int:
        """What `rounds` batches for each queue amount to, at least `messages`."""
        return self.batch * self.rounds * self.topics * self.queues

    @property
    def disk_bytes(self) -> int:
        """What a broker of this size takes on the disk, and what has to be left."""
        queues = self.topics * self.queues * QUEUE_BYTES
        return self.sent * MESSAGE_BYTES + self.timers * TIMER_BYTES + queues + _SPARE_BYTES

    def with_a_file_for_each_queue(self, files: int, mappings: int) -> Size:
        """So many topics that a broker can keep a file and a mapping of each queue open, as RocketMQ's does.

        Args:
            files, mappings: how many of these a process may have here.
        """
        room = min(files - self.connections, mappings) - _OTHER_FILES
        return replace(self, topics=max(1, min(self.topics, room // self.queues)))


#: Of a Java process: its jars, libraries, threads' stacks, the log.
_OTHER_FILES: Final = 2_000
QUICK: Final = Size(topics=1_000, messages=1_000_000, timers=50_000, connections=500, samples=500, idle_seconds=3.0)
