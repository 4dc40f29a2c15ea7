"""Which messages of a topic a consumer wants: its subscription, and the filter that is made of it. Pure.

A tag filter is applied to the entries of a queue, before a record is read: it compares hash codes there, as RocketMQ's
does, and leaves the comparison of texts to the client. An SQL92 filter reads the properties of records, a batch at a
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from raymq.actors.core.sql_filter import SqlFilter, compile_sql
from raymq.actors.errors import BadSubscription, InvalidInput
from raymq.storage.java_hash import tags_code

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One consumer's wish for one topic. `version` is the client's; a higher one replaces a lower one."""

    topic: str
    expression: str = ALL
    kind: str = TAG
    version: int = 0

    @property
    def filter(self) -> Filter:
        """What the broker applies. Raises BadSubscription."""
        return filter_of(self.kind, self.expression)


@dataclass(frozen=True, slots=True)
class Filter:
    """`tags_codes` are the codes of the entries that may pass, None: all; of their records those that `sql` passes."""

    tags_codes: frozenset[int] | None
    sql: SqlFilter | None = None

    @property
    def passes_all(self) -> bool:
        """Whether nothing is filtered out."""
        return self.tags_codes is None and self.sql is None


EVERYTHING = Filter(None)


@lru_cache(maxsize=4096)
def filter_of(kind: str, expression: str) -> Filter:
    """The filter of an expression; an empty `kind` means tags.

    Raises:
        BadSubscription: the expression has no tag or cannot be read, or its language is not served.
    """
    if kind == SQL92:
        try:
            return Filter(None, compile_sql(expression))
        except InvalidInput as error:
            raise BadSubscription(str(error)) from None
    if kind not in ("", TAG):
        raise BadSubscription(f"The broker does not support consumer to filter message by {kind}")
    tags = tags_of(expression)
    return Filter(None if tags is None else frozenset(map(tags_code, tags)))


def tags_of(expression: str) -> frozenset[str] | None:
    """The tags in "a || b", blanks around them removed; None for "*" and for nothing: all.

    Raises:
        BadSubscription: there are separators and no tag.
    """
    if expression.strip() in ("", ALL):
        return None
    tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
    if not tags:
        raise BadSubscription(f"{expression!r} names no tag")
    return tags
