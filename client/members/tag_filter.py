"""Parse a consumer's subscriptions: tag expressions or SQL92 conditions for topics.

A tag expression is, for example, "paid || shipped". For tags the broker compares Java hash codes, which may collide;
the client then compares the text. SQL conditions are evaluated by the broker only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raymq.actors.filter.sql_filter import SqlFilter, compile_sql
from raymq.actors.filter.tag_expression import SQL92, Subscription
from raymq.actors.naming import check_topic
from raymq.storage.errors import InvalidInput, WrongType
from raymq.storage.records.java_hash import tags_code

ALL = "*"


def check_missing_topics(value: object) -> None:
    """Raise InvalidInput unless the value is "wait" or "error".

    It is what a consumer does about topics that do not exist.
    """
    if value not in ("wait", "error"):
        raise InvalidInput("missing_topics", '"wait" or "error"', value)


@dataclass(frozen=True, slots=True)
class Sql:
    """A subscription by an SQL92 condition over a message's properties and TAGS.

    For example "price > 3 and TAGS = 'a'".
    """

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise TypeError(f"an SQL expression must be str, not {type(self.expression).__name__}")


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed tag expression; `tags` is None if every message passes."""

    expression: str
    tags: frozenset[str] | None

    @classmethod
    def parse(cls, expression: str) -> TagFilter:
        """Parse "*", "a" or "a || b"; raise InvalidInput if the expression is invalid."""
        if not isinstance(expression, str):
            raise TypeError(f"a subscription must be str, not {type(expression).__name__}")
        if expression.strip() in ("", ALL):
            return cls(ALL, None)
        tags = [tag.strip() for tag in expression.split("||")]
        if not all(tags) or ALL in tags or any(c in expression for c in "\x00\x01\x02"):
            raise InvalidInput("subscriptions", '"*", or tags joined by "||"', expression)
        return cls(" || ".join(sorted(set(tags))), frozenset(tags))

    @property
    def codes(self) -> frozenset[int] | None:
        """Return the hash codes that the broker compares; None for all."""
        return None if self.tags is None else frozenset(map(tags_code, self.tags))

    @property
    def sql(self) -> None:
        """Return None: a tag expression has no SQL condition."""

    def check(self) -> None:
        """Do nothing: the expression was checked when it was parsed."""

    def subscription(self, topic: str) -> Subscription:
        """Return the subscription that is sent to brokers."""
        return Subscription(topic, self.expression)

    def passes(self, tags: str | None) -> bool:
        """Return True if a message with this tag matches."""
        return self.tags is None or tags in self.tags


@dataclass(frozen=True, slots=True)
class SqlSubscription:
    """An SQL92 condition with the interface of `TagFilter`.

    The expression is parsed by `check`, not before.
    """

    expression: str

    @property
    def codes(self) -> None:
        """Return None: messages of all tags are fetched."""

    @property
    def sql(self) -> SqlFilter:
        """Return the compiled condition, which the broker evaluates."""
        return compile_sql(self.expression)

    def check(self) -> None:
        """Raise InvalidInput if the expression cannot be parsed."""
        compile_sql(self.expression)

    def subscription(self, topic: str) -> Subscription:
        """Return the subscription that is sent to brokers."""
        return Subscription(topic, self.expression, SQL92)

    def passes(self, tags: str | None) -> bool:  # noqa: ARG002
        """Return True: the broker has filtered the message already."""
        return True


def parse_subscriptions(subscriptions: Mapping[str, str | Sql]) -> dict[str, TagFilter | SqlSubscription]:
    """Return the filter of each topic, after checking every name and tag expression."""
    if not isinstance(subscriptions, Mapping):
        raise WrongType("subscriptions", 'a mapping of topics to expressions, such as {"orders": "*"}', subscriptions)
    if not subscriptions:
        raise InvalidInput("subscriptions", "at least one topic", {})
    return {
        check_topic(topic, "subscriptions"): SqlSubscription(condition.expression)
        if isinstance(condition, Sql)
        else TagFilter.parse(condition)
        for topic, condition in subscriptions.items()
    }


def expressions(filters: Mapping[str, TagFilter | SqlSubscription]) -> dict[str, str]:
    """Return the expression of each topic as text."""
    return {topic: each.subscription(topic).expression for topic, each in filters.items()}
