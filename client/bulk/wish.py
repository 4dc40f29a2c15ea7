"""What a reader of whole ranges wants of their messages: which of them, and which of their columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raymq.actors.filter.sql_filter import compile_sql
from raymq.actors.filter.wanted import Wanted
from raymq.actors.protocol import MessageQueue
from raymq.client.members.subscription import TagFilter


class Lived(NamedTuple):
    """When offsets of a topic on a broker were looked up, as that broker counts: in which incarnation of the topic, and
    under which recovery epoch. None where that is not known.
    """

    incarnation: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """Picklable. All messages and columns, where nothing is said.

    Attributes:
        tags: only messages with one of these tags; the broker compares their hashes, the reader their text.
        sql: only messages that this SQL92 expression is true of; the broker evaluates it.
        columns: of a table of messages; without the body among them bodies do not leave the broker.
    """

    tags: frozenset[str] | None = None
    sql: str | None = None
    columns: frozenset[str] | None = None

    @property
    def takes_all(self) -> bool:
        """Whether no message is left out."""
        return self.tags is None and self.sql is None

    @property
    def bodies(self) -> bool:
        """Whether bodies are wanted."""
        return self.columns is None or "body" in self.columns

    def of(self, queue: MessageQueue, offset: int, lived: Lived) -> Wanted:
        """What is asked of a broker, where `offset` is one of then."""
        sql = None if self.sql is None else compile_sql(self.sql)
        codes = None if self.tags is None else TagFilter("", self.tags).codes
        return Wanted(queue.topic, queue.queue_id, offset, codes, sql, lived.epoch, lived.incarnation)
