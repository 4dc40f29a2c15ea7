"""What the log still has, to which all that recovery restores beside it is clamped.

A loss of power takes the log's end and may leave what was written about it elsewhere; so may a damaged log. Whatever
speaks of places that the log does not have (any more) is void. Otherwise the messages that get these places next would
be taken for consumed, delivered or stored already. Queues and index are derived from the log, and recovery makes them
agree with it (`recovery`); everything else is clamped when it is opened, by this table:

    groups' offsets, resets        at most the queue's maximum                                       `progress`
    delay levels                   commits made when the log reached further are void: the copies    `progress`
                                   may be lost; at most the level's queue's maximum
    what pop has lent              deliveries behind the queue's maximum are void                     `in_flight`
    timers                         entries that tell of records behind the end are void; the marks    `timer_log`
                                   at most the timer queue's maximum and the log's end; after a loss
                                   of memory the files go back to what the last checkpoint synced
    idempotent producers           batches behind their queue's maximum, and those of topics that     `producer_history`
                                   were deleted since, are void; the position at most the log's end
    staged writes                  marks "is in the log" and "is about to be" behind the end are      `staging`
                                   void; a commit drops its data when the log has it on disk, and
                                   hides what comes from the queue's maximum on at the latest
    deleted topics, checkpoint     at most the log's end                                             `opening`

Groups' offsets and what pop has lent say which deletions of topics they know of; where a topic was deleted later, since
their journals could not be told, what they say of it is void, too.

Settings of topics and groups, request modes and the broker's identity name no place of the log: each is durable before
its change is answered, and nothing of them is clamped.

Whatever is clamped is on disk before the store takes its first message: at the next loss of power the log may have
grown beyond the old values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Remains:
    """What recovery has found.

    Attributes:
        log_end: where the log ends.
        memory_lost: what was not synced may be gone: the machine has been started anew, also behind a proper stop, or
            its disk failed.
        max_offsets: of each queue that is there, by topic and queue id; None = no queue has lost anything.
        deleted_topics: where the log ended when a topic was deleted; what is older of that name is nobody's.
        settled: those of them whose deletion is no news to any table: their master told of it no more.
    """

    log_end: int
    memory_lost: bool = False
    max_offsets: Mapping[tuple[str, int], int] | None = None
    deleted_topics: Mapping[str, int] = field(default_factory=dict)
    settled: Collection[str] = ()

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the queue's next message; 0 where nothing was ever written."""
        return EVERYTHING.log_end if self.max_offsets is None else self.max_offsets.get((topic, queue_id), 0)

    def deleted_later(self, forgotten: Mapping[str, int] | None) -> list[str]:
        """The topics that were deleted, and not only as a table says that has `forgotten` them.

        Args:
            forgotten: where the log ended then; None: the table is of a time when nobody wrote that down.
        """
        if forgotten is None:
            return []
        later = [topic for topic, place in self.deleted_topics.items() if forgotten.get(topic, -1) < place]
        return [topic for topic in later if topic not in self.settled]

    def has(self, log_end: int) -> bool:
        """Whether the log reaches as far as it did when something was written down."""
        return log_end <= self.log_end


#: Nothing is lost: for tables that are opened without a store.
EVERYTHING: Final = Remains(1 << 62)
