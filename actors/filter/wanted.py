"""What a fetch asks of one queue: where it reads on, and what of that is wanted."""

from __future__ import annotations

from dataclasses import dataclass

from raymq.actors.filter.sql_filter import SqlFilter
from raymq.actors.filter.subscription import Filter


@dataclass(frozen=True, slots=True)
class Wanted:
    """One queue of a fetch: from `offset` on, only what has a tags code of these (None: all) and passes `sql`.

    `epoch` is the recovery epoch that what lies before `offset` was read under: 0 if the client has not learnt one yet,
    None if it does not care. `incarnation` is that of the topic in which `offset` was meant, None for the one that is
    there.
    """

    topic: str
    queue_id: int
    offset: int
    tags_codes: frozenset[int] | None = None
    sql: SqlFilter | None = None
    epoch: int | None = None
    incarnation: int | None = None

    @property
    def filter(self) -> Filter:
        """What is wanted of the queue."""
        return Filter(self.tags_codes, self.sql)
