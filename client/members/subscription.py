"""What a consumer subscribes to: a topic, and a tag expression such as "paid || shipped", or an SQL92 condition.

Of tags the broker compares Java hash codes, which may collide; the client then compares the text. SQL is the broker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raymq.actors.filter.sql_filter import SqlFilter, compile_sql
from raymq.actors.filter.subscription import SQL92, Subscription
from raymq.actors.naming import check_topic
from raymq.storage.errors import InvalidInput, WrongType
from raymq.storage.records.java_hash import tags_code

ALL = "*"


def check_missing_topics(told: object) -> None:
    """Check what a consumer is to do about topics that do not exist; raises InvalidInput."""
    if told not in ("wait", "error"):
        raise InvalidInput("missing_topics", '"wait" or "error"', told)


@dataclass(frozen=True, slots=True)
class Sql:
    """A subscription by an SQL92 condition over a message's properties and TAGS, such as "price > 3 and TAGS = 'a'"."""

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise TypeError(f"an SQL expression must be str, not {type(self.expression).__name__}")


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed tag expression; `tags` is None where every message passes."""

    expression: str
    tags: frozenset[str] | None

    @classmethod
    def parse(cls, expression: str) -> TagFilter:
        """Read "*", "a" or "a || b"; InvalidInput names what is wrong."""
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
        """What the broker compares; None for all."""
        return None if self.tags is None else frozenset(map(tags_code, self.tags))

    @property
    def sql(self) -> None:
        """There is none."""

    def check(self) -> None:
        """It was checked when it was parsed."""

    def subscription(self, topic: str) -> Subscription:
        """What the brokers are told."""
        return Subscription(topic, self.expression)

    def passes(self, tags: str | None) -> bool:
        """Whether a message with this tag is wanted."""
        return self.tags is None or tags in self.tags


@dataclass(frozen=True, slots=True)
class SqlWanted:
    """An SQL92 condition; the same face as `TagFilter`. The expression is read by `check`, not before."""

    expression: str

    @property
    def codes(self) -> None:
        """All tags."""

    @property
    def sql(self) -> SqlFilter:
        """What the broker applies."""
        return compile_sql(self.expression)

    def check(self) -> None:
        """Raise InvalidInput if the expression cannot be read."""
        compile_sql(self.expression)

    def subscription(self, topic: str) -> Subscription:
        """What the brokers are told."""
        return Subscription(topic, self.expression, SQL92)

    def passes(self, tags: str | None) -> bool:  # noqa: ARG002
        """The broker has looked at it already."""
        return True


def parse_subscriptions(subscriptions: Mapping[str, str | Sql]) -> dict[str, TagFilter | SqlWanted]:
    """Topic to filter, every name and tag expression checked."""
    if not isinstance(subscriptions, Mapping):
        raise WrongType("subscriptions", 'a mapping of topics to expressions, such as {"orders": "*"}', subscriptions)
    if not subscriptions:
        raise InvalidInput("subscriptions", "at least one topic", {})
    return {
        check_topic(topic, "subscriptions"): SqlWanted(wanted.expression)
        if isinstance(wanted, Sql)
        else TagFilter.parse(wanted)
        for topic, wanted in subscriptions.items()
    }


def expressions(filters: Mapping[str, TagFilter | SqlWanted]) -> dict[str, str]:
    """Topic to expression, to be shown."""
    return {topic: wanted.subscription(topic).expression for topic, wanted in filters.items()}
