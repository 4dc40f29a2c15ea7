"""Which messages of a topic a consumer wants: its subscription, and the filter that is made of it. Pure.

A tag filter is applied to the entries of a queue, before a record is read: it compares hash codes there, as RocketMQ's
does, and leaves the comparison of texts to the client. An SQL92 filter reads the properties of records, a batch at a
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raymq.actors.errors import BadSubscription, InvalidInput
from raymq.actors.filter.kept_texts import KeptTexts
from raymq.actors.filter.sql_filter import SqlFilter, compiling
from raymq.storage.records.java_hash import tags_code
from raymq.storage.steps import Steps, finish

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
#: Of a tag expression. Each tag costs some thirty times its characters for as long as a pull that names it waits.
MAX_TAG_CHARACTERS: Final = 32_767
_KEPT_CHARACTERS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Subscription:
    """One consumer's wish for one topic. `version` is the client's; a higher one replaces a lower one."""

    topic: str
    expression: str = ALL
    kind: str = TAG
    version: int = 0

    def reading_filter(self) -> Steps[Filter]:
        """What the broker applies, see below. Raises BadSubscription."""
        return reading_filter(self.kind, self.expression)


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
_known: KeptTexts[Filter] = KeptTexts(_KEPT_CHARACTERS)


def filter_of(kind: str, expression: str) -> Filter:
    """The filter of an expression; an empty `kind` means tags.

    Raises:
        BadSubscription: the expression has no tag or cannot be read or is too long, or its language is not served.
    """
    return finish(reading_filter(kind, expression))


def reading_filter(kind: str, expression: str) -> Steps[Filter]:
    """`filter_of` in steps; one, unless it is an SQL92 expression that comes for the first time."""
    if kind == SQL92:
        try:
            sql = yield from compiling(expression)
            return Filter(None, sql)
        except InvalidInput as error:
            raise BadSubscription(str(error)) from None
    if kind not in ("", TAG):
        raise BadSubscription(f"The broker does not support consumer to filter message by {kind}")
    if len(expression) > MAX_TAG_CHARACTERS:
        raise BadSubscription(f"tags of at most {MAX_TAG_CHARACTERS} characters together, not {len(expression)}")
    return _known.get(expression, _of_tags)


def _of_tags(expression: str) -> Filter:
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
