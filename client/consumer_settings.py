"""The settings of a push consumer, checked."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from raymq.actors.errors import InvalidInput
from raymq.actors.naming import check_group
from raymq.client.offsets import ConsumeFrom
from raymq.client.process_queue import MAX_MESSAGES
from raymq.client.rebalance import strategy_named
from raymq.client.subscription import SqlWanted, TagFilter
from raymq.client.trace import Trace

#: What an ordered consumer may wait before it repeats a failed list (RocketMQ's suspendCurrentQueueTimeMillis).
LEAST_RETRY_SECONDS = 0.01
MOST_RETRY_SECONDS = 30.0


class MessageModel(enum.Enum):
    """Whether members share the messages out or each gets all; the values are RocketMQ's names."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


#: With a rate limit, what is fetched ahead of the listener per queue is worth so many seconds; the rest stays there.
_AHEAD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What `PushConsumer` was given; its docstring says what each means."""

    group: str
    filters: Mapping[str, TagFilter | SqlWanted]
    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.FIRST
    consume_timestamp: float | None = None
    ordered: bool = False
    max_reconsume_times: int | None = None
    threads: int = 20
    batch_size: int = 1
    consume_timeout: float = 900.0
    strategy: str = "average"
    ordered_retry_interval: float = 1.0
    rate_limit: float | None = None
    on_outage: str | None = None
    park_failed_keys: bool = False
    trace: Trace | None = None

    def __post_init__(self) -> None:
        check_group(self.group)
        if not isinstance(self.model, MessageModel):
            raise TypeError("model must be a MessageModel")
        if not isinstance(self.consume_from, ConsumeFrom):
            raise TypeError("consume_from must be a ConsumeFrom")
        if self.consume_from is ConsumeFrom.TIMESTAMP and self.consume_timestamp is None:
            raise InvalidInput("consume_timestamp", "seconds since the epoch with ConsumeFrom.TIMESTAMP", None)
        for name, least in (("threads", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidInput(name, f"a whole number, at least {least}", value)
        limit = self.max_reconsume_times
        if limit is not None and (not isinstance(limit, int) or limit < 0):
            raise InvalidInput("max_reconsume_times", "None, or a whole number, at least 0", limit)
        strategy_named(self.strategy)
        if not self.consume_timeout > 0:
            raise InvalidInput("consume_timeout", "more than 0 seconds", self.consume_timeout)
        if not LEAST_RETRY_SECONDS <= self.ordered_retry_interval <= MOST_RETRY_SECONDS:
            allowed = f"{LEAST_RETRY_SECONDS}..{MOST_RETRY_SECONDS} seconds"
            raise InvalidInput("ordered_retry_interval", allowed, self.ordered_retry_interval)
        if self.rate_limit is not None and not self.rate_limit > 0:
            raise InvalidInput("rate_limit", "None, or more than 0 messages per second", self.rate_limit)
        if self.on_outage not in (None, "pause"):
            raise InvalidInput("on_outage", 'None or "pause"', self.on_outage)
        if self.park_failed_keys and not self.ordered:
            raise InvalidInput("park_failed_keys", "False where ordered is False: nothing blocks there", True)

    @property
    def fetched_messages(self) -> int:
        """How many messages of one queue may be fetched and not finished."""
        if self.rate_limit is None:
            return MAX_MESSAGES
        return min(MAX_MESSAGES, max(self.batch_size, int(self.rate_limit * _AHEAD_SECONDS), 1))
