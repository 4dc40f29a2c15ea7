"""Select the messages and the columns of a read of whole ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raymq.actors.filter.fetch_spec import FetchSpec
from raymq.actors.filter.sql_filter import compile_sql
from raymq.actors.protocol import MessageQueue
from raymq.client.members.tag_filter import TagFilter


class ReadFence(NamedTuple):
    """The incarnation of a topic and the recovery epoch when its offsets were looked up.

    Both are the broker's values; None where they are not known.
    """

    incarnation: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """The filter and the columns of a read; by default all messages and columns.

    It can be pickled.

    Attributes:
        tags: only messages with one of these tags; the broker compares their hashes, the reader their text.
        sql: only messages for which this SQL92 expression is true; the broker evaluates it.
        columns: the columns of a table of messages; without "body" the broker sends no bodies.
    """

    tags: frozenset[str] | None = None
    sql: str | None = None
    columns: frozenset[str] | None = None

    @property
    def is_unfiltered(self) -> bool:
        """Return True if no message is left out."""
        return self.tags is None and self.sql is None

    @property
    def bodies(self) -> bool:
        """Return True if bodies are read."""
        return self.columns is None or "body" in self.columns

    def of(self, queue: MessageQueue, offset: int, fence: ReadFence) -> FetchSpec:
        """Return the fetch of a queue from `offset` on, an offset that `fence` applies to."""
        sql = None if self.sql is None else compile_sql(self.sql)
        codes = None if self.tags is None else TagFilter("", self.tags).codes
        return FetchSpec(queue.topic, queue.queue_id, offset, codes, sql, fence.epoch, fence.incarnation)
