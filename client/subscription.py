"""What a consumer subscribes to: a topic, and a tag expression such as "paid || shipped".

The broker compares Java hash codes, which may collide; the client then compares the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raymq.actors.naming import check_topic
from raymq.storage.errors import InvalidInput
from raymq.storage.java_hash import tags_code

ALL = "*"


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

    def passes(self, tags: str | None) -> bool:
        """Whether a message with this tag is wanted."""
        return self.tags is None or tags in self.tags


def parse_subscriptions(subscriptions: Mapping[str, str]) -> dict[str, TagFilter]:
    """Topic to filter, every name and expression checked."""
    if not subscriptions:
        raise InvalidInput("subscriptions", "at least one topic", dict(subscriptions))
    return {
        check_topic(topic, "subscriptions"): TagFilter.parse(expression) for topic, expression in subscriptions.items()
    }
