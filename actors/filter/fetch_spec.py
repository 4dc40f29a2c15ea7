"""The start and the filter of a fetch from one queue."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.filter.sql_filter import SqlFilter
from raymq.actors.filter.tag_expression import MessageFilter


@dataclass(frozen=True, slots=True)
class FetchSpec:
    """One queue of a fetch: the records from `offset` on that pass the filter.

    A record passes if its tags code is in `tags_codes` (None: any code) and `sql` is true of it.

    `epoch` is the recovery epoch under which the client has read the records before `offset`: 0 if the client does not
    know one yet, None to skip the check. `incarnation` is that of the topic that `offset` belongs to; None for the
    topic's current one.
    """

    topic: str
    queue_id: int
    offset: int
    tags_codes: frozenset[int] | None = None
    sql: SqlFilter | None = None
    epoch: int | None = None
    incarnation: int | None = None

    @property
    def filter(self) -> MessageFilter:
        """Return the filter of the queue's messages."""
        return MessageFilter(self.tags_codes, self.sql)
