"""Subscriptions of consumers, and the message filters that are parsed from them.

The module performs no I/O. A tag filter is applied to the entries of a queue before a record is read: it compares hash
codes, as RocketMQ's does, and leaves the comparison of the tags' texts to the client. An SQL92 filter reads the
properties of records, a batch at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import BadSubscription, InvalidInput
from raymq.actors.filter.lru_cache import LRUCache
from raymq.actors.filter.sql_filter import SqlFilter, compile_sql_steps
from raymq.storage.cooperative_steps import Steps
from raymq.storage.records.java_hash import tags_code

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
#: The longest tag expression. Each tag takes some thirty times its characters in memory while a pull with it waits.
MAX_TAG_CHARACTERS: Final = 32_767
_KEPT_CHARACTERS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Subscription:
    """The messages of one topic that a consumer selects.

    `version` is set by the client; a higher version replaces a lower one.
    """

    topic: str
    expression: str = ALL
    kind: str = TAG
    version: int = 0

    def parse_filter_steps(self) -> Steps[MessageFilter]:
        """Parse the filter that the broker applies, in steps; raise BadSubscription."""
        return parse_filter_steps(self.kind, self.expression)


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A filter by tags and by SQL.

    `tags_codes` are the codes of the entries that may pass (None: all entries). Their records have to pass `sql` as
    well.
    """

    tags_codes: frozenset[int] | None
    sql: SqlFilter | None = None

    @property
    def passes_all(self) -> bool:
        """Return True if all messages pass."""
        return self.tags_codes is None and self.sql is None


MATCH_ALL = MessageFilter(None)
_known: LRUCache[MessageFilter] = LRUCache(_KEPT_CHARACTERS)


def parse_filter_steps(kind: str, expression: str) -> Steps[MessageFilter]:
    """Return the filter of an expression; an empty `kind` means tags.

    It takes one step, except for an SQL92 expression that is not cached.

    Raises:
        BadSubscription: the expression has no tag, cannot be parsed or is too long, or its language is not supported.
    """
    if kind == SQL92:
        try:
            sql = yield from compile_sql_steps(expression)
            return MessageFilter(None, sql)
        except InvalidInput as error:
            raise BadSubscription(str(error)) from None
    if kind not in ("", TAG):
        raise BadSubscription(f"The broker does not support consumer to filter message by {kind}")
    if len(expression) > MAX_TAG_CHARACTERS:
        raise BadSubscription(f"tags of at most {MAX_TAG_CHARACTERS} characters together, not {len(expression)}")
    return _known.get(expression, _of_tags)


def _of_tags(expression: str) -> MessageFilter:
    tags = parse_tags(expression)
    return MessageFilter(None if tags is None else frozenset(map(tags_code, tags)))


def parse_tags(expression: str) -> frozenset[str] | None:
    """Return the tags in "a || b", without blanks; None for "*" or "": all.

    Raises:
        BadSubscription: there are separators and no tag.
    """
    if expression.strip() in ("", ALL):
        return None
    tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
    if not tags:
        raise BadSubscription(f"{expression!r} names no tag")
    return tags
