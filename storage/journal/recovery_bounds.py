"""What the log still has after recovery; all tables are clamped to it.

A power loss can remove the end of the log but keep what was written about it elsewhere; a damaged log can do the same.
Everything that refers to positions that the log does not have (any more) is void. Otherwise the next messages at these
positions would count as consumed, delivered or stored already. Queues and index are derived from the log, and recovery
makes them consistent with it (`recovery`). Everything else is clamped at opening:

    groups' offsets, resets        at most the queue's maximum                       `consumer_offsets`
    delay levels                   commits made when the log reached further are     `delay_offsets`
                                   void: their copies may be lost; at most the
                                   maximum of the level's queue
    messages in flight (pop)       deliveries after the queue's maximum are void     `in_flight_messages`
    questions of transactions      those about halves after the queue's maximum      `transaction_checks`
    timers                         entries for records after the end are void; the   `timer_log`
                                   marks at most the timer queue's maximum and the
                                   log's end; after a loss of memory the files go
                                   back to what the last checkpoint synced
    idempotent producers           batches after their queue's maximum, and those    `producer_states`
                                   of topics that were deleted since, are void;
                                   the position at most the log's end
    staged writes                  chunks after the end are lost; "is in the log"    `staged_records`
                                   and "is about to be" after the end are void; a
                                   commit hides what comes from the queue's
                                   maximum on at the latest
    deleted topics                 at most the log's end; an ordered truncation      `deleted_topics`
                                   undoes those after it

Settings of topics and groups, request modes and the broker's identity contain no position of the log: each change is
durable before it is acknowledged, and they are not clamped.

All clamped values are on disk before the store accepts its first message: at the next power loss the log may have grown
beyond the old values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class RecoveryBounds:
    """The result of recovery.

    Attributes:
        log_end: where the log ends.
        memory_lost: data that was not synced may be lost: the machine has been restarted, even if the store was closed
            properly, or its disk failed.
        max_offsets: the maximum offset of each existing queue, by topic and queue id; None = no queue has lost
            anything.
        deleted_topics: where the log ended when each topic was deleted; older records of that name belong to no topic.
    """

    log_end: int
    memory_lost: bool = False
    max_offsets: Mapping[tuple[str, int], int] | None = None
    deleted_topics: Mapping[str, int] = field(default_factory=dict)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the queue's next message; 0 if nothing was ever written."""
        return UNBOUNDED.log_end if self.max_offsets is None else self.max_offsets.get((topic, queue_id), 0)

    def has(self, log_end: int) -> bool:
        """Return True if the log still reaches `log_end`, a previously recorded end."""
        return log_end <= self.log_end


#: Bounds without any loss, for tables that are opened without a store.
UNBOUNDED: Final = RecoveryBounds(1 << 62)
