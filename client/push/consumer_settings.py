"""Check and hold the settings of a push consumer."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raymq.actors.errors import InvalidInput
from raymq.actors.naming import check_group
from raymq.client import arguments
from raymq.client.members.assignment_strategies import get_strategy
from raymq.client.members.tag_filter import SqlSubscription, TagFilter, check_missing_topics
from raymq.client.message import ReceivedMessage
from raymq.client.push.process_queue import MAX_MESSAGES
from raymq.client.requests.offset_requests import ConsumeFrom

#: How long an ordered consumer may wait before it repeats a failed list (RocketMQ's suspendCurrentQueueTimeMillis).
LEAST_RETRY_SECONDS = 0.01
MAX_RETRY_SECONDS = 30.0
#: The longest lease that a broker grants at a time.
MAX_LEASE_SECONDS = 12 * 3600.0
#: More threads per consumer are almost certainly a mistake.
MAX_THREADS = 10_000


class MessageModel(enum.Enum):
    """The message model: members share the messages, or each member gets all.

    The values are RocketMQ's names.
    """

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class TraceState(enum.Enum):
    """The step of a message.

    A message is READY when it was fetched, and IN_FLIGHT while a listener call has it. The other three states end a
    delivery.
    """

    READY = "ready"
    IN_FLIGHT = "in flight"
    COMMIT = "commit"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One step of one delivery."""

    state: TraceState
    message: ReceivedMessage


#: A trace function. It is called on the connection's event loop and must not block. An exception that it raises is
#: logged and otherwise ignored.
Trace = Callable[[TraceEvent], None]


#: With a rate limit, the consumer fetches at most this many seconds' worth of messages per queue ahead of the listener.
#: Further messages stay on the broker.
_AHEAD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The arguments of a `PushConsumer`, which documents their meaning."""

    group: str
    filters: Mapping[str, TagFilter | SqlSubscription]
    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.FIRST
    consume_timestamp: float | None = None
    ordered: bool = False
    max_reconsume_times: int | None = None
    threads: int = 20
    batch_size: int = 1
    consume_timeout: float = 900.0
    hang_after: float = 300.0
    strategy: str = "average"
    ordered_retry_interval: float = 1.0
    rate_limit: float | None = None
    on_outage: str | None = None
    park_failed_keys: bool = False
    trace: Trace | None = None
    missing_topics: str = "wait"
    failure_text: bool = True
    subscription_version: int = 0
    mode: str = "queue"
    lease: float = 30.0
    prefetch: int | None = None

    def __post_init__(self) -> None:
        check_group(self.group)
        if not isinstance(self.model, MessageModel):
            raise TypeError("model must be a MessageModel")
        if not isinstance(self.consume_from, ConsumeFrom):
            raise TypeError("consume_from must be a ConsumeFrom")
        if self.consume_timestamp is not None:
            arguments.timestamp("consume_timestamp", self.consume_timestamp)
        elif self.consume_from is ConsumeFrom.TIMESTAMP:
            raise InvalidInput("consume_timestamp", "a time with ConsumeFrom.TIMESTAMP", None)
        arguments.whole("threads", self.threads, 1, MAX_THREADS)
        arguments.whole("batch_size", self.batch_size, 1)
        if self.max_reconsume_times is not None:
            arguments.whole("max_reconsume_times", self.max_reconsume_times, 0)
        get_strategy(self.strategy)
        arguments.duration("consume_timeout", self.consume_timeout, above=True)
        arguments.duration("hang_after", self.hang_after, above=True)
        least, most = LEAST_RETRY_SECONDS, MAX_RETRY_SECONDS
        interval = self.ordered_retry_interval
        arguments.number("ordered_retry_interval", interval, f"{least}..{most} seconds", least=least, most=most)
        if self.rate_limit is not None:
            arguments.per_second("rate_limit", self.rate_limit)
        for name in ("ordered", "park_failed_keys", "failure_text"):
            arguments.flag(name, getattr(self, name))
        if self.trace is not None and not callable(self.trace):
            raise InvalidInput("trace", "None, or a function that is called with each event", self.trace)
        if self.on_outage not in (None, "pause"):
            raise InvalidInput("on_outage", 'None or "pause"', self.on_outage)
        check_missing_topics(self.missing_topics)
        arguments.whole("subscription_version", self.subscription_version, 0)
        if self.park_failed_keys and not self.ordered:
            raise InvalidInput("park_failed_keys", "False where ordered is False, since nothing blocks there", True)
        self._check_mode()

    def _check_mode(self) -> None:
        if self.mode not in ("queue", "pop"):
            raise InvalidInput("mode", '"queue" or "pop"', self.mode)
        arguments.duration("lease", self.lease, above=True, most=MAX_LEASE_SECONDS)
        if self.prefetch is not None:
            arguments.whole("prefetch", self.prefetch, 0 if self.pops else 1)
        if self.pops:
            wrong = {
                "ordered": self.ordered,
                "model": self.model is not MessageModel.CLUSTERING,
                "park_failed_keys": self.park_failed_keys,
            }
            for field in [name for name, is_set in wrong.items() if is_set]:
                raise InvalidInput(
                    field,
                    'its default with mode="pop", where any member gets any message',
                    getattr(self, field),
                    remedy='use mode="queue"',
                )

    @property
    def pops(self) -> bool:
        """Return True if brokers lease messages to the consumer instead of assigning queues."""
        return self.mode == "pop"

    @property
    def lease_ms(self) -> int:
        """Return the length of a message's lease in milliseconds."""
        return max(1, int(self.lease * 1000))

    @property
    def fetched_messages(self) -> int:
        """Return how many messages of one queue may be fetched and not finished.

        If `prefetch` is set, only messages whose calls have not begun count.
        """
        most = MAX_MESSAGES if self.prefetch is None or self.pops else min(MAX_MESSAGES, self.prefetch)
        if self.rate_limit is None:
            return most
        return min(most, max(self.batch_size, int(self.rate_limit * _AHEAD_SECONDS), 1))
