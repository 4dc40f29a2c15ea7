"""The settings of a push consumer, checked."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from raymq.actors.errors import InvalidInput
from raymq.actors.naming import check_group
from raymq.client.offsets import ConsumeFrom
from raymq.client.subscription import SqlWanted, TagFilter


class MessageModel(enum.Enum):
    """Whether members share the messages out or each gets all; the values are RocketMQ's names."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What `PushConsumer` was given."""

    group: str
    filters: Mapping[str, TagFilter | SqlWanted]
    model: MessageModel
    consume_from: ConsumeFrom
    consume_timestamp: float | None
    max_reconsume_times: int | None
    threads: int
    batch_size: int

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
